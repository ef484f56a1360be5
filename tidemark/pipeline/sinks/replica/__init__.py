"""The replica of a table: runs of changes and events, applied to its rows and columns."""
