"""Values that all layers use: LSNs, positions, relations, changes, errors. Imports no other package of Tidemark."""
