"""Rounds of random sessions, each beside the server's own decoder; `campaign` has the story."""
