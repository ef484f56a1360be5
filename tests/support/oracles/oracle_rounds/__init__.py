"""Rounds of random sessions, each compared with the server's own decoder; start with `campaign`."""
