"""From a portion of a batch to the tables of one lake: formats, paused and deferred tables, maintenance, progress."""
