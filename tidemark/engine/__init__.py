"""Decisions and buffers of the delivery, and the ports that the shell implements. Pure."""
