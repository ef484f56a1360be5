"""Descriptions of relations and types, made from the rows of the catalogs."""
