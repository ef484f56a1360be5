"""The lines of JSON between the command and its decoding processes: orders and reports, by two pipes.

Output of the decoder never passes here: it is in chunk files, which a report names, or is written directly.
"""

from dataclasses import dataclass, field
from enum import Enum

from tidemark.engine.selection import Selection
from tidemark.engine.wal_ranges import PlannedRange
from tidemark.model.lsn import INVALID_LSN, Lsn
from tidemark.wire.json_form import JsonForm


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """What is decoded and how it is printed, the same for all ranges."""

    state: str
    archive: str
    database: str | None
    selection: Selection
    form: str
    counting: bool
    is_from_lsn: bool = False  # whether the whole output begins at an LSN that was given


@dataclass(frozen=True, slots=True)
class RangeOrder:
    """A range to decode; without one, permission for another chunk, or to write the range to the output itself."""

    number: int = 0
    part: PlannedRange | None = None
    is_next: bool = False  # everything before this range is printed: what follows its chunks goes to the output


class ReportKind(Enum):
    """The kinds of report."""

    CHUNK = "chunk"  # the next part of the output is complete
    DONE = "done"  # so is the whole range
    ERROR = "error"
    NOTE = "note"  # for standard error
    CLOSED = "closed"  # the reader of the output has ended


@dataclass(frozen=True, slots=True)
class Report:
    """A message of a decoding process."""

    kind: ReportKind
    number: int  # of the range
    text: str = ""  # file of a chunk; text of an error or note
    hint: str = ""
    exit_code: int = 0
    decoded_lsn: Lsn = INVALID_LSN
    counts: dict[str, float] = field(default_factory=dict)


RANGE_ORDER: JsonForm[RangeOrder] = JsonForm(RangeOrder)
REPORT: JsonForm[Report] = JsonForm(Report)
