"""The archiver: the process that reads archived WAL, and `cdcctl-archive`, which fills its spool."""
