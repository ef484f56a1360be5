"""The sinks: they write a batch of changes into the logs and replicas of the lake. `sinks` calls the others."""
