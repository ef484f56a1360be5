"""Expressions of SQL on the columns of a batch, with the results of PostgreSQL, or refused when they are made."""
