"""Rows of tables from the pages of a base backup, as of any LSN after its end, without a server."""
