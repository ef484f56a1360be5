"""PostgreSQL servers for tests, and the programs and files around them."""
