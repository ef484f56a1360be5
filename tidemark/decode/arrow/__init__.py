"""Tuples to Arrow record batches: by compiled kernels for whole columns."""
