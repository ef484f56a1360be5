"""Assembles transactions from records, as decode.c and reorderbuffer.c do, with a fast path for small ones."""
