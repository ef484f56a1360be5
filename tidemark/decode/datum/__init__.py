"""PostgreSQL's storage format of values: tuples, varlena, TOAST, and the location of each value of a row."""
