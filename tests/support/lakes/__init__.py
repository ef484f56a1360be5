"""Lakes, and scripted tables that feed them."""
