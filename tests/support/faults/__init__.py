"""Faults on purpose, and campaigns of them."""
