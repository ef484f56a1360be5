"""The recipes that need jars, run against a real server and a real broker: `scripts/recipes`."""
