"""The first filling of a mirror: by SELECTs, or from the pages of a base backup."""
