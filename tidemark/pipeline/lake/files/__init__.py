"""The data files of a table: their form, statistics and partitions."""
