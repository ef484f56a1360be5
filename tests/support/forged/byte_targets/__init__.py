"""Everything of ours that parses bytes from outside, each as a function of bytes that a fuzzer can call."""
