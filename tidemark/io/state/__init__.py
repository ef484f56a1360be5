"""The state folder and its LMDB environment."""
