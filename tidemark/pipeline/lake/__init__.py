"""The lake and its Delta tables: access, layouts, the positions table, the lock, and a comparison with the source."""
