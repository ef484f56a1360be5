"""Independent results to compare with: output of other programs, and models of our code."""
