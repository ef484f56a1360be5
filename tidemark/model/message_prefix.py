"""The prefixes of Tidemark's own logical messages."""

MARKER_PREFIX = "tidemark"
"""Prefix of Tidemark's logical messages: no consumer and no renderer shows them."""
LOSS_PREFIX = "tidemark.loss"
"""Prefix of messages about changes that were given up (I29)."""
REWIND_PREFIX = "tidemark.rewind"
"""Prefix of messages about delivered changes of a dead branch."""
HEARTBEAT_PREFIX = "tidemark.heartbeat"
"""Prefix of messages that show, while nothing else is delivered, that the capture runs (U18)."""
CAPTURE_PREFIXES = frozenset({LOSS_PREFIX, REWIND_PREFIX, HEARTBEAT_PREFIX})
"""Prefixes of messages that only the capture creates: in WAL they are ignored, since any role may write them."""
