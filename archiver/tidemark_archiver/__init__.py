"""The archive-reading process, and the command that fills its spool."""
