"""Real servers and helpers that the tests share."""
