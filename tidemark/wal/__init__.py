"""Bytes of the write-ahead log to records. Pure: no files, no sockets, no catalog."""
