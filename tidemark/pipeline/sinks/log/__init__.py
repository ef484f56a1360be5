"""The logs of a lake: changes of a table, messages of a database, and the events of all tables."""
