"""Lakes, and tables whose content a test determines."""
