"""Decisions of a pool that calls a handler: its batches, their order, poison, confirmations and the stop. Pure."""
