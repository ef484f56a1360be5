"""Mutation testing of the modules on which data loss depends; `scripts/mutate` starts it."""
