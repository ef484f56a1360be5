"""Sockets, files and LMDB: adapters that act and report back."""
