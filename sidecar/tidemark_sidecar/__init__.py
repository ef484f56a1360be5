"""The realtime process: wiring and loop."""
