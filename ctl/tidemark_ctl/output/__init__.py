"""What commands print while they work, and the changes that they print."""
