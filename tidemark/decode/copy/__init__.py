"""Lines of COPY ... TO STDOUT to record batches."""
