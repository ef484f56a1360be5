"""A capture: its threads, the ring's sources, delivery to a target."""
