"""The tables that are behind their lake: paused tables and deferred replicas, and what the outbox keeps for them."""
