"""The rows of one table with its own types, in the forms of a query."""
