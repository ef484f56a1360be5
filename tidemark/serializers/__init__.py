"""Serializers: batches of changes as keys and values in bytes, in a form that other software reads.

Pure like the decoder; the text is made by `tidemark.decode.render`. They run in the threads of the handlers. The names
for users are those of the package `tidemark`.
"""
