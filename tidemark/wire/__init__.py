"""Byte formats that cross a process boundary: replication messages, outbox keys and values. Pure."""
