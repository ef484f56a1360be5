"""Change logs as Iceberg tables: the catalog, the tables, their positions, and expired snapshots."""
