"""Delivery: from groups of changes to a target, the record of the position, a consumer's calls and confirmations."""
