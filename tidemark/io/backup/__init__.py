"""Base backups as folders and as tar files."""
