"""Bodies of WAL records, one module a resource manager."""
