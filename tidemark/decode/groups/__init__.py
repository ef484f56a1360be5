"""Builds bounded change groups from transactions."""
