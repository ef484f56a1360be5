"""Batches of changes into logs and replicas."""
