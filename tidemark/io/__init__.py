"""Sockets, files and LMDB: adapters that perform actions and report their results."""
