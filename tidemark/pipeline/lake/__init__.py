"""Delta tables: their commits, layouts, positions and locks."""
