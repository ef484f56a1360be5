"""The commit log of a Delta table: applied position, foreign commits, restrictions, damage, and its cleanup."""
