"""The merge into a replica: compaction to one row for each key, the touched files, and the files written for them."""
