"""The PostgreSQL node: SQL, replication, COPY."""
