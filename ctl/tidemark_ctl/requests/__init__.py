"""What commands ask of running processes, and the waits for their answers."""
