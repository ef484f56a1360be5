"""Log lines about tables of the lake whose state a batch changed."""

from collections.abc import Iterator, Mapping

from tidemark.io.host.logs import Log
from tidemark.pipeline.lake.faults import Fault, FaultKind
from tidemark.pipeline.lake.lineage import TableDiverged, TableStopped
from tidemark.pipeline.lake.positions import TableId, TablePosition, TableState

HINTS = {FaultKind.DIVERGED: TableDiverged.hint, FaultKind.STOPPED: TableStopped.hint}
EVENTS = {FaultKind.DIVERGED: "table diverged", FaultKind.STOPPED: "table stopped"}
STALE_HINT = "give the table a primary key, then cdcctl table recopy"


def faults_of(table: TablePosition) -> Iterator[tuple[str, Fault]]:
    """Yield the faults of a table, with `log` or `replica`."""
    for name, target in (("log", table.log), ("replica", table.replica)):
        if target.fault is not None:
            yield name, target.fault


def report_changes(log: Log, before: Mapping[TableId, TablePosition], after: Mapping[TableId, TablePosition]) -> None:
    """Log each table that diverged, stopped, became stale or recovered, and each changed reason."""
    for of, table in after.items():
        known = before.get(of)
        if known is not table:
            _report(log, known, table)


def _report(log: Log, known: TablePosition | None, table: TablePosition) -> None:
    reported = {"table": table.qualified_name, "folder": table.folder}
    were = dict(faults_of(known)) if known is not None else {}
    present = dict(faults_of(table))
    for target, fault in present.items():
        known_fault = were.get(target)
        if known_fault is None or (known_fault.kind, known_fault.reason) != (fault.kind, fault.reason):
            hint = HINTS[fault.kind]
            position = str(fault.position)
            log.error(EVENTS[fault.kind], **reported, target=target, reason=fault.reason, after=position, hint=hint)
    for target in were.keys() - present.keys():
        log.info("table continues", **reported, target=target)
    for broke in table.breaks[len(known.breaks) if known is not None else 0 :]:
        log.warning("log has a break", **reported, reason=broke.reason, after=str(broke.after), to=str(broke.to))
    state = known.state if known is not None else None
    if table.state is not state and table.state is TableState.STALE:
        log.warning("replica is stale: the table has no key", **reported, hint=STALE_HINT)
    elif table.state is not state and table.state is TableState.BLOCKED:
        log.warning("table has no key: log only", **reported)
