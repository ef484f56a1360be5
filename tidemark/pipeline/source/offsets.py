"""Spark's offsets: a sequence of one outbox, always at the end of a group, and for rows the columns of the query.

NB: Spark compares offsets as text, so keys and their order never change.
"""

from tidemark.model.errors import StateError

Offset = dict[str, str | int]


class OutboxReplaced(StateError):
    """A checkpoint of another outbox than the one in the state folder."""

    hint = "delete Spark's checkpoint: the lake, or the query's reader, has the position from which to continue"


class OffsetMovedBack(StateError):
    """A range that ends before it starts: Spark accepts such a range without an error."""

    hint = "delete Spark's checkpoint: the lake, or the query's reader, has the position from which to continue"
