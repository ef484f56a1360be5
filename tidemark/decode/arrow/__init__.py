"""Builds Arrow record batches from tuples; compiled kernels write whole columns."""
