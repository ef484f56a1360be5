"""The engine that an application embeds: batches, their order, the pool of handlers, the life cycle.

It uses one capture of `tidemark.runtime.capture`, as the daemons do, and no second way to read or deliver. The names
for users are those of the package `tidemark`, which imports them from here when they are first used.
"""
