"""Transactions that are open or have committed, with their rows and other items until then, as in reorderbuffer.c."""
