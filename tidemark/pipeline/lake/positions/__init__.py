"""The positions table, and the position of each table in it."""
