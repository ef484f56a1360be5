"""Transforms: what happens to a batch of changes between the stream and the handler, in columns of Arrow.

Pure like the decoder: no input or output, no clock. A transform is *bound* once to each version of a table, where
columns and types are checked; then its step runs on each batch. Steps run in the threads of the handlers. The names for
users are those of the package `tidemark`.
"""
