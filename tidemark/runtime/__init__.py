"""Threads, tasks and the delivery loop."""
