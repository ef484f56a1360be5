"""The configuration of a process, and its views from outside: control socket, metrics, watchdog."""
