"""The Spark query on the driver: the program, its session, Java and executors, retries."""
