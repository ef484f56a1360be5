"""Changes that a consumer could not handle: the table of those that are parked, and the record of skipped ones."""
