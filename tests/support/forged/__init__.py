"""Bytes, records and groups made by hand."""
