"""The seed: exact catalog mirrors at one LSN, from a server or from a base backup."""
