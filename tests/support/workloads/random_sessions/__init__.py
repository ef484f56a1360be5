"""Random sessions against a server: what they do is drawn from a seed, how they interleave is the server's affair."""
