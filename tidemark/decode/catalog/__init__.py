"""The catalog mirror: system catalogs updated from WAL tuple by tuple."""
