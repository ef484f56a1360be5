"""Values of a table that are stored in its TOAST table: found by an index that one pass over its pages makes."""

from pathlib import Path

from tidemark.decode.datum.toast import HAS_EXTERNAL, INFOMASK_AT, chunk_content, chunk_key
from tidemark.decode.datum.tuples import TupleLayout, external_pointers, replace_external
from tidemark.decode.datum.varlena import BadDatum, ExternalPointer, reassembled_datum
from tidemark.io.backup.chunk_index import ChunkIndex
from tidemark.model.lsn import BlockNumber
from tidemark.model.relation import RelFileLocator
from tidemark.runtime.backup_rows.catalogs import HeapFiles
from tidemark.runtime.backup_rows.page_replay import PageReplay
from tidemark.wal.rmgr import heap


class ToastedValues:
    """Replaces the pointers in rows of one table by the values."""

    def __init__(self, replay: PageReplay, files: HeapFiles, scratch: Path) -> None:
        self._replay = replay
        self._files = files
        self._layout = TupleLayout.of(files.relation)
        self._scratch = scratch
        self._index: ChunkIndex | None = None  # made when the first pointer is found
        self._page: tuple[BlockNumber, bytes] | None = None  # the last one: the chunks of a value are mostly together

    def fill_in(self, packed: bytes) -> bytes:
        """Return a row with all values in it."""
        if not packed[INFOMASK_AT] & HAS_EXTERNAL:
            return packed
        pointers = external_pointers(packed, self._layout)
        datums = {column: self._datum(pointer) for column, pointer in pointers}
        return replace_external(packed, self._layout, datums)

    def _datum(self, pointer: ExternalPointer) -> bytes:
        toast, name = self._files.toast, self._files.relation.qualified_name
        if toast is None:
            raise BadDatum(f"{name} has no TOAST table, but a value {pointer.value_id} there")
        if self._index is None:
            self._index = self._indexed(toast)
        chunks = []
        for expected, (number, block, offset) in enumerate(self._index.places(pointer.value_id)):
            found = heap.page_tuple(self._page_of(toast, block), offset)
            if number != expected or found is None:
                raise BadDatum(f"{name}: chunk {expected} of TOAST value {pointer.value_id} is missing")
            chunks.append(chunk_content(found[0]))
        try:
            return reassembled_datum(pointer, chunks)
        except BadDatum as error:
            raise BadDatum(f"{name}: {error}") from error

    def _page_of(self, toast: RelFileLocator, block: BlockNumber) -> bytes:
        if self._page is None or self._page[0] != block:
            self._page = block, bytes(self._replay.page(toast, block) or b"")
        return self._page[1]

    def _indexed(self, toast: RelFileLocator) -> ChunkIndex:
        index = ChunkIndex(self._scratch, f"{toast.spc}-{toast.rel}")
        where = f"the TOAST table of {self._files.relation.qualified_name}"
        for row in self._replay.visibility.rows(self._replay.pages(toast), where):
            value_id, number = chunk_key(row.packed)
            index.add(value_id, number, row.block, row.offset)
        return index
