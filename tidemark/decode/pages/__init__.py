"""Pages of users' tables: changed by WAL, and read as rows."""
