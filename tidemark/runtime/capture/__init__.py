"""A capture: its threads, the ring's sources, and the decoding of what the ring holds."""
