"""The Delta tables of the lake: commits, layouts, positions, locks, and the detection of damage and foreign writes."""
