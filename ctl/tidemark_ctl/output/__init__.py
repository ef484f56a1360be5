"""The progress that commands report, and the changes that they print."""
