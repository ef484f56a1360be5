"""All code of the product that parses external bytes, each as a function of bytes that a fuzzer can call."""
