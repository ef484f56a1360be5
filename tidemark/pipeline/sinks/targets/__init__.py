"""One log or replica as a target: whether and with which columns it is written, and the state that results."""
