"""One module for each command of cdcctl."""
