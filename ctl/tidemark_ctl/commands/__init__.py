"""One module for each command of cdcctl, and one folder for each group of commands, with the table of the group."""
