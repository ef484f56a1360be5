"""PostgreSQL's own regression and isolation tests as a workload for the oracle; `campaign` has the story."""
