"""What the workers of an engine's pool are."""

from enum import Enum


class PoolKind(Enum):
    """Where the handler and the serializer run."""

    THREADS = "threads"
    PROCESSES = "processes"  # forked at the start of the engine: each has the handler as it was then, and its own lock
