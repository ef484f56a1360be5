"""The keys of data files that merges have read, kept in memory: a data file never changes.

Changes that are strewn over a table have the same candidates in each batch, and opening a file costs more than
comparing its keys. The bound is that of the process, for all tables.
"""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

import pyarrow as pa

BYTES_MAX = 32 << 20  # the keys of 4 million rows with a bigint key
FileKey = tuple[str, ...]  # what names the file, and the columns with their types


class KeptKeys:
    """Tables of keys by file, the last used ones within a bound in bytes; used by several threads."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[FileKey, pa.Table] = OrderedDict()
        self._byte_count = 0
        self._lock = Lock()

    @property
    def byte_count(self) -> int:
        """Return the size of all kept tables."""
        return self._byte_count

    def get(self, file: FileKey, read: Callable[[], pa.Table]) -> pa.Table:
        """Return the keys of a file; `read` them if they are not kept."""
        with self._lock:
            kept = self._kept.get(file)
            if kept is not None:
                self._kept.move_to_end(file)
                return kept
        rows = read()
        self._keep(file, rows)
        return rows

    def _keep(self, file: FileKey, rows: pa.Table) -> None:
        size = rows.get_total_buffer_size()
        if size > self._bytes_max // 4:
            return  # it would displace most others
        with self._lock:
            if file in self._kept:
                return  # another thread read it meanwhile
            self._kept[file] = rows
            self._byte_count += size
            while self._byte_count > self._bytes_max:
                _, oldest = self._kept.popitem(last=False)
                self._byte_count -= oldest.get_total_buffer_size()
