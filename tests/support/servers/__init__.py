"""PostgreSQL servers of tests, and what stands around them."""
