"""Values of every type."""
