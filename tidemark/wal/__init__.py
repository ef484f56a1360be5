"""Bytes of the write-ahead log to records. Pure: knows no file, no socket and no catalog."""
