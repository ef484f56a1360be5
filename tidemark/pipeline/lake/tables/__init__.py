"""One Delta table of a lake: its snapshot, its commits, its upkeep and its errors."""
