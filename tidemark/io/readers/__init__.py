"""A state for the readers of its outbox: values, registration, confirmation, progress, requests about paused tables."""
