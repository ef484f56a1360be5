"""Workloads for the servers."""
