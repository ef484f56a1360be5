"""The catalog mirror: system catalogs redone tuple by tuple from WAL."""
