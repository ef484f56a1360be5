"""What a process is configured by and seen by: configuration, control socket, metrics, watchdog."""
