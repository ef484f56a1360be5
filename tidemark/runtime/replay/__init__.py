"""Decoding WAL that is archived: ranges, times, damage."""
