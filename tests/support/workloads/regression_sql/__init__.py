"""PostgreSQL's own regression and isolation tests as a workload for the oracle; start with `campaign`."""
