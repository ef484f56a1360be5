"""The outbox server as a program: `python -m tidemark.runtime.serving`."""
