"""Where a lake is stored: the port for its files, on a local file system and in an object store."""
