"""Records to changes: tuples, TOAST, catalog mirror, transactions, types. Pure."""
