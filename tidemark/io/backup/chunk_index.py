"""Where the chunks of TOASTed values are: sorted runs in temporary files, so that memory does not grow with a table."""

import os
from array import array
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tidemark.decode.catalog.heap import OFFSET_BITS
from tidemark.io.backup.changed_pages import scratch_error
from tidemark.model.lsn import BlockNumber, Oid

ENTRIES_MAX = 1 << 22  # of one run, which is sorted in memory: 16 bytes each
_NUMBER_BITS = 32
SortedRun = npt.NDArray[np.uint64]  # keys, then places


class ChunkIndex:
    """The places of the chunks of one TOAST table."""

    def __init__(self, folder: Path, name: str, entries_max: int = ENTRIES_MAX) -> None:
        self._folder = folder
        self._name = name
        self._entries_max = entries_max
        self._keys = array("Q")
        self._places = array("Q")
        self._runs: list[SortedRun] = []

    def add(self, value_id: Oid, number: int, block: BlockNumber, offset: int) -> None:
        """Add a chunk; none after the first call of `places`."""
        self._keys.append(value_id << _NUMBER_BITS | number)
        self._places.append(block << OFFSET_BITS | offset)
        if len(self._keys) >= self._entries_max:
            self._write()

    def places(self, value_id: Oid) -> list[tuple[int, BlockNumber, int]]:
        """Return number, block and offset of the chunks of a value, in order."""
        if self._keys:
            self._runs.append(self._sorted())
            self._keys, self._places = array("Q"), array("Q")
        first = value_id << _NUMBER_BITS
        found: list[tuple[int, int]] = []
        for keys, places in self._runs:
            start = np.searchsorted(keys, np.uint64(first))
            stop = np.searchsorted(keys, np.uint64(first | (1 << _NUMBER_BITS) - 1), "right")
            found += zip(keys[start:stop].tolist(), places[start:stop].tolist(), strict=True)
        return [
            (key - first, BlockNumber(place >> OFFSET_BITS), place & (1 << OFFSET_BITS) - 1)
            for key, place in sorted(found)
        ]

    def _sorted(self) -> SortedRun:
        keys, places = np.frombuffer(self._keys, np.uint64), np.frombuffer(self._places, np.uint64)
        order = np.argsort(keys, kind="stable")
        return np.stack((keys[order], places[order]))

    def _write(self) -> None:
        run = self._sorted()
        path = self._folder / f"chunks-{self._name}-{len(self._runs)}"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                run.tofile(file)
            self._runs.append(np.memmap(path, np.uint64, "r", shape=run.shape))
        except OSError as error:
            raise scratch_error(path, error) from error
        self._keys, self._places = array("Q"), array("Q")
