"""Reads Tidemark's Debezium records with Kafka Connect's and Debezium's own classes: `scripts/envelopes`."""
