"""The Spark query on the driver: the program, its session, Java, the log of offsets, retries."""
