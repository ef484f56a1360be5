"""A record batch in Arrow's IPC format, in one buffer, while its columns are written.

The head of the message, a flatbuffer, has one node for each array and one descriptor for each buffer, in a fixed order.
The heads of two batches with equal numbers of both differ only in these values: pyarrow writes the head once, and all
other batches copy it.
"""

import struct
from collections.abc import Iterator
from functools import lru_cache

import pyarrow as pa

from tidemark.decode.arrow.batch_body import put_buffer, put_node
from tidemark.decode.arrow.small_batch import MESSAGE_BYTES
from tidemark.model.errors import InternalError

FORMS_KEPT = 4096
GROWN_BYTES_MIN = 4096  # added to a body that was estimated too small
# The default pool returns a large body to the operating system at once, which doubles the page faults.
MEMORY_POOL = pa.system_memory_pool()
_PREFIX_BYTES = 8  # continuation marker and length of the head
_U32, _I32, _U16 = struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<H")
# Fields of the tables Message and RecordBatch (Message.fbs).
_HEADER, _BODY_LENGTH, _LENGTH, _NODES, _BUFFERS = 2, 3, 0, 1, 2


def padded(size: int) -> int:
    """Return the size of a buffer in a body, with padding."""
    return size + 7 & ~7


class MessageForm:
    """The message head of some record batches, and the indexes of its numbers, in 64-bit words."""

    __slots__ = ("body_length", "buffers", "head", "length", "nodes")

    def __init__(self, message: bytes) -> None:
        self.head = message[: _PREFIX_BYTES + _U32.unpack_from(message, 4)[0]]
        root = self._pointed(_PREFIX_BYTES)
        batch = self._pointed(self._field(root, _HEADER))
        self.body_length = _word(self._field(root, _BODY_LENGTH))
        self.length = _word(self._field(batch, _LENGTH))
        self.nodes = _word(self._pointed(self._field(batch, _NODES)) + 4)  # after the vector's length
        self.buffers = _word(self._pointed(self._field(batch, _BUFFERS)) + 4)

    def _pointed(self, at: int) -> int:
        away: int = _U32.unpack_from(self.head, at)[0]
        return at + away

    def _field(self, table: int, number: int) -> int:
        back: int = _I32.unpack_from(self.head, table)[0]
        away: int = _U16.unpack_from(self.head, table - back + 4 + 2 * number)[0]
        return table + away


def _word(at: int) -> int:
    if at % 8:
        raise InternalError(f"a 64-bit number of an IPC message is at the unaligned byte {at}")
    return at // 8


@lru_cache(maxsize=FORMS_KEPT)
def message_form(nodes: int, buffers: int) -> MessageForm:
    """Return the form of the batches with these numbers of nodes and buffers."""
    three, one = max(0, buffers - 2 * nodes), max(0, 2 * nodes - buffers)
    types = [pa.string()] * three + [pa.struct([])] * one + [pa.int8()] * (nodes - three - one)
    batch = pa.RecordBatch.from_arrays([pa.nulls(1, of) for of in types], [""] * nodes)
    return MessageForm(batch.serialize().to_pybytes())


class BatchMessage:
    """A record batch under construction: `out` and `out_*` are views of the same bytes; `at` is the write offset."""

    __slots__ = ("_bytes", "_form", "at", "body", "offsets", "out", "out_16", "out_32", "words")

    def __init__(self, form: MessageForm, body_bytes: int) -> None:
        """Allocate about `body_bytes`."""
        self._form = form
        self.at = self.body = len(form.head)
        self._allocate(self.body + body_bytes)
        self.out[: self.body] = form.head

    def _allocate(self, byte_count: int) -> None:
        self._bytes = pa.allocate_buffer(padded(byte_count), MEMORY_POOL)  # NB: not initialized
        self.out = memoryview(self._bytes).cast("B")
        self.out_16: memoryview[int] = self.out.cast("H")
        self.out_32: memoryview[int] = self.out.cast("I")
        self.words: memoryview[int] = self.out.cast("Q")
        self.offsets: memoryview[int] = self.out.cast("i")

    def grow(self, byte_count: int = GROWN_BYTES_MIN) -> None:
        """Add space for at least `byte_count` bytes and at least half of the current size."""
        kept = self.out[: self.at]
        self._allocate(len(self.out) + max(byte_count, len(self.out) // 2))
        self.out[: self.at] = kept

    def require(self, byte_count: int) -> None:
        """Ensure space for `byte_count` bytes."""
        if self.at + byte_count > len(self.out):
            self.grow(byte_count)

    def add(self, column: pa.Array, node: int, buffer: int) -> None:
        """Copy an array that was built elsewhere to the nodes and buffers from `node` and `buffer` on."""
        for made in _nodes(column):
            put_node(self.words, node, len(made), made.null_count)
            node += 2
        for made in column.buffers():
            size = made.size if made is not None else 0
            self.require(size + 8)
            put_buffer(self.words, buffer, self.at - self.body, size)
            if size:
                self.out[self.at : self.at + size] = memoryview(made).cast("B")
            end = self.at + padded(size)
            self.out[self.at + size : end] = bytes(end - self.at - size)
            self.at = end
            buffer += 2

    def finish(self, rows: int) -> bytes | pa.Buffer:
        """Return the message of a batch with `rows` rows.

        A small one is copied to its exact length: that saves memory and costs no time.
        """
        self.words[self._form.length] = rows
        self.words[self._form.body_length] = self.at - self.body
        return bytes(self.out[: self.at]) if self.at <= MESSAGE_BYTES else self._bytes.slice(0, self.at)


def _nodes(column: pa.Array) -> Iterator[pa.Array]:
    """Yield an array and its child arrays in the order of IPC."""
    yield column
    if isinstance(column, pa.ListArray):
        yield from _nodes(column.values)
