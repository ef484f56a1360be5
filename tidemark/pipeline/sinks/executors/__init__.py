"""Large runs of changes that Spark's executors write."""
