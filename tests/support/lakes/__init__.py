"""Lakes, and tables whose content a test knows."""
