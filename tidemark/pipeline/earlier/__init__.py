"""Adds the changes of a table that were made before it was captured to its log in the lake."""
