"""Other programs that say what is right, and models of our own."""
