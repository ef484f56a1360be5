"""PostgreSQL's values on disk: tuples, varlena, TOAST, and where each value of a row is."""
