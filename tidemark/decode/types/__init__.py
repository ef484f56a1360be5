"""Converts on-disk datums to text and to Arrow, one module for each family of types."""
