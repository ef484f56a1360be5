"""A decoder's spill storage in memory."""


class MemorySpill:
    """A spill port that is a dict: it refuses unknown keys."""

    def __init__(self) -> None:
        self.kept: dict[int, bytes] = {}
        self.writes = 0

    def write(self, *parts: bytes | bytearray) -> int:
        self.writes += 1
        self.kept[self.writes] = b"".join(parts)
        return self.writes

    def read(self, handle: int) -> bytes:
        return self.kept[handle]

    def release(self, handle: int) -> None:
        del self.kept[handle]
