"""On-disk datums to text and to Arrow, one module a type family."""
