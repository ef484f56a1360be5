"""The files of the catalog history."""

from dataclasses import dataclass

from tidemark.model.lsn import INVALID_LSN, Lsn, TimelineId


@dataclass(frozen=True, slots=True)
class BaseEntry:
    """A saved catalog base at one LSN: decoding can begin there."""

    file: str  # inside the folder `history`
    timeline: TimelineId
    lsn: Lsn  # the mirror is exact at this LSN
    restart_lsn: Lsn  # least first LSN of the transactions open there
    byte_count: int


@dataclass(frozen=True, slots=True)
class JournalFile:
    """A journal file: the catalog-relevant records of [start_lsn, end_lsn)."""

    file: str
    timeline: TimelineId
    start_lsn: Lsn
    end_lsn: Lsn = INVALID_LSN  # 0 while it is being written: read to its end


@dataclass(frozen=True, slots=True)
class HistoryIndex:
    """The catalog history's files, oldest first."""

    bases: tuple[BaseEntry, ...] = ()
    journals: tuple[JournalFile, ...] = ()


@dataclass(frozen=True, slots=True)
class JournalMark:
    """How far the journal was durable at a delivery that depends on it: a shorter journal is damaged."""

    end_lsn: Lsn = INVALID_LSN  # of the last entry
