"""Runs the recipes that need jars: `scripts/recipes`."""
