"""Deliberate faults, and campaigns of faults."""
