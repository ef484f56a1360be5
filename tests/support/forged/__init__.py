"""Hand-made bytes, records and groups."""
