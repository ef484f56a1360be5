"""The machine: disk, clock, processes, logs, systemd."""
