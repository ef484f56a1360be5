"""The life cycle of a daemon, its requests to the node, and the transitions of its stage."""
