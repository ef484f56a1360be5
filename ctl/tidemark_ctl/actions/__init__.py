"""What the commands of cdcctl do: one module for each command whose help must not load what its work needs."""
