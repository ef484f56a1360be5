"""The last recorded progress of each pipeline and its lake, for `cdcctl status`; see `landing.progress`."""

import shlex
from collections.abc import Collection, Container, Iterator
from dataclasses import dataclass
from pathlib import Path

from tidemark.io.readers.accepted_breaks import log_key
from tidemark.wire.json_form import JsonForm, JsonMismatch
from tidemark_ctl.views.render import Tree

PIPELINE_FILES = "pipeline-*.json"
LOG, DIVERGED, PAUSED, CHANGED = "log", "diverged", "paused", "changed"
MESSAGES_ENTRY = "messages"


@dataclass(frozen=True, slots=True)
class LakeFault:
    """A log or a replica that is not written."""

    database: str
    relation: str
    table: str
    target: str
    kind: str
    reason: str
    after: str
    remedy: str = ""  # of a log that a new copy does not mend

    @property
    def key(self) -> str:
        """The key of the log's accepted break."""
        return log_key(self.database, self.relation)

    def concerns(self, tables: Collection[tuple[int, int]] | None) -> bool:
        """Return whether the fault is of one of `tables`; None: of messages, which have the relation 0."""
        if tables is None:
            return self.relation == "0"
        return (int(self.database), int(self.relation)) in tables


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """The part of a pipeline's file that concerns tables."""

    reader: str
    lake: str
    lsn: str
    tables: int
    faults: tuple[LakeFault, ...] = ()
    stale: tuple[str, ...] = ()
    waits_for_room: str = ""
    waits_for_store: str = ""


@dataclass(frozen=True, slots=True)
class ReaderWait:
    """Why a pipeline does not confirm what it has read."""

    reader: str
    reason: str
    hint: str


@dataclass(frozen=True, slots=True)
class LakeLoss:
    """A log that will continue with a gap, once its table is copied or the break is accepted."""

    reader: str
    lake: str
    fault: LakeFault

    def __str__(self) -> str:
        fault = self.fault
        return (
            f"the log of {fault.table} (database {fault.database}) has diverged: {fault.reason}. It will "
            f"continue with a break: it will not contain the changes between {fault.after} and the restart, "
            "and earlier rows remain as they are. If it was paused for too long, archived WAL may have these changes: "
            "cdcctl table resume --archive"
        )


_PIPELINE_REPORT: JsonForm[PipelineReport] = JsonForm(PipelineReport)


def pipeline_reports(state: Path) -> Iterator[PipelineReport]:
    """Return the last report of each pipeline, by reader; unreadable files are left out."""
    for path in sorted(state.glob(PIPELINE_FILES)):
        try:
            yield _PIPELINE_REPORT.read(path.read_bytes())
        except (OSError, JsonMismatch):
            continue


def diverged_logs(state: Path, tables: Collection[tuple[int, int]] | None = None) -> list[LakeLoss]:
    """Return the diverged logs of `tables` (database and relation); None: the logs of messages."""
    return [
        LakeLoss(report.reader, report.lake, fault)
        for report in pipeline_reports(state)
        for fault in report.faults
        if (fault.target, fault.kind) == (LOG, DIVERGED) and fault.concerns(tables)
    ]


def changed_logs(
    state: Path, tables: Collection[tuple[int, int]], readers: Container[str]
) -> list[tuple[str, LakeFault]]:
    """Return the logs of `tables` in Iceberg's format that another writer changed, each with its lake.

    `readers`: those whose pipelines are considered.
    """
    return [
        (report.lake, fault)
        for report in pipeline_reports(state)
        for fault in report.faults
        if fault.kind == CHANGED and fault.concerns(tables) and report.reader in readers
    ]


def paused_tables(state: Path) -> list[tuple[str, LakeFault]]:
    """Return the paused logs and replicas, each with the reader whose pipeline writes it."""
    reports = pipeline_reports(state)
    return [(report.reader, fault) for report in reports for fault in report.faults if fault.kind == PAUSED]


def waiting_pipelines(state: Path, readers: Container[str]) -> list[ReaderWait]:
    """Return why pipelines of `readers` wait, by their last report: a disk, a store, or paused tables."""
    return [wait for report in pipeline_reports(state) if report.reader in readers for wait in _waits(report)]


def _waits(report: PipelineReport) -> Iterator[ReaderWait]:
    if report.waits_for_room:
        yield ReaderWait(report.reader, report.waits_for_room, "free space on that disk")
    if report.waits_for_store:
        hint = "see the pipeline's log for the answers of the object store"
        yield ReaderWait(report.reader, report.waits_for_store, hint)
    paused = [fault for fault in report.faults if fault.kind == PAUSED]
    if paused:
        first = paused[0]
        more = f" and {len(paused) - 1} more" if len(paused) > 1 else ""
        yield ReaderWait(
            report.reader,
            f"the outbox keeps the changes of paused tables: {first.table} {first.target}{more} ({first.reason})",
            f"remove the cause, then: cdcctl table resume {shlex.quote(first.table)}; cdcctl status lists all of them",
        )


def lake_tree(state: Path) -> Tree:
    """Return the lakes by reader; None if no pipeline has written."""
    return {
        report.reader: {
            "lake": report.lake,
            "lsn": report.lsn,
            "tables": report.tables,
            "not_written": [
                f"{one.table} {one.target}: {one.kind} after {one.after}: {one.reason}" for one in report.faults
            ],
            "stale_replicas": list(report.stale),
            **({"waits_for_room": report.waits_for_room} if report.waits_for_room else {}),
            **({"waits_for_store": report.waits_for_store} if report.waits_for_store else {}),
        }
        for report in pipeline_reports(state)
    } or None
