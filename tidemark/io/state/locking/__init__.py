"""Which processes use a state folder: locks, heartbeats, and the guard on LMDB's write lock."""
