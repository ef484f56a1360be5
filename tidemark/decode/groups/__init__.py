"""Transactions to bounded change groups."""
