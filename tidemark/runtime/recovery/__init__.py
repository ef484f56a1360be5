"""Restart points after a loss: repair, rebuild, rewind, promotion."""
