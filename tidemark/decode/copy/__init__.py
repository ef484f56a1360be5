"""Builds record batches from lines of COPY ... TO STDOUT."""
