"""Tidemark: realtime change data capture for PostgreSQL that never holds back the database."""
