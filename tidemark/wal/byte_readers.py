"""Little-endian integers in the buffers that kernels read: the only definition for all kernels.

Compiled kernels use the inline functions of `byte_readers.pxd`, interpreted kernels use these. An offset outside the
buffer raises IndexError in both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TypeAlias

    ReadableBuffer: TypeAlias = bytes | bytearray | memoryview[int]


def read_u16(data: ReadableBuffer, at: int) -> int:
    """Read a little-endian integer of two bytes."""
    return data[at] | data[at + 1] << 8


def read_u32(data: ReadableBuffer, at: int) -> int:
    """Read a little-endian integer of four bytes."""
    return data[at] | data[at + 1] << 8 | data[at + 2] << 16 | data[at + 3] << 24


def read_u64(data: ReadableBuffer, at: int) -> int:
    """Read a little-endian integer of eight bytes."""
    return read_u32(data, at) | read_u32(data, at + 4) << 32
