"""Writes the rows that a table had at one moment, from its log in the lake and the events of the lake."""
