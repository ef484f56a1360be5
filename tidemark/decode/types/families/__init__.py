"""The codecs of the type families, one module for each."""
