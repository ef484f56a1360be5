"""Values that every layer speaks: LSNs, positions, relations, changes, errors. Imports nothing of ours."""
