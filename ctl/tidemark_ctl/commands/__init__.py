"""One module a command of cdcctl."""
