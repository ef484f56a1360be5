"""Decodes WAL records to changes: tuples, TOAST, catalog mirror, transactions, types. Pure: no input or output."""
