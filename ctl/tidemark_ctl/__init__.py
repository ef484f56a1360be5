"""The cdcctl command line."""
