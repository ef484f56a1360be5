"""Random sessions against a server: a seed determines their statements, the server determines how they interleave."""
