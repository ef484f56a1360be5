"""The outbox over Arrow Flight: its server, and the client that reads it from another host."""
