"""The requests of commands to running processes, and the waits for their answers."""
