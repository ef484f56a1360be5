"""The first copy of tables, and copies again at an operator's request."""
