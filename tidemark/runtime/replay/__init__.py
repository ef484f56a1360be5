"""Decoding of archived WAL: ranges, times, damage."""
