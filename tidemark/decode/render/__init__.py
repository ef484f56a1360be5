"""Text forms of changes: the server's own, and JSON lines."""
