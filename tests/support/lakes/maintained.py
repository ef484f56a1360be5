"""Maintenance of a lake that a test feeds: its steps are taken by the test, in place of the pipeline's thread."""

from tidemark.io.host.log_output import get_log
from tidemark.io.process.lake_config import LakeConfig
from tidemark.pipeline.delta_log.log_cleanup import KEEP_S, LogCleanup
from tidemark.pipeline.lake.tables.table_locks import TableLocks
from tidemark.pipeline.landing.dropped_tables import DroppedTables
from tidemark.pipeline.landing.maintenance import Maintenance
from tidemark.pipeline.landing.metrics import PipelineMetrics
from tidemark.pipeline.sinks.lake import Lake

ALWAYS = LakeConfig(maintain_commits=1)  # each table that a batch wrote is due
STEPS_MAX = 20  # of each table that was written


def maintenance_of(
    root: str,
    config: LakeConfig = ALWAYS,
    locks: TableLocks | None = None,
    metrics: PipelineMetrics | None = None,
    *,
    dropped: DroppedTables | None = None,
) -> Maintenance:
    """Return the maintenance of the lake at `root`."""
    log = get_log("test")
    metrics = metrics or PipelineMetrics("test")
    return Maintenance(config, locks or TableLocks(), LogCleanup(root, KEEP_S, log), metrics, log, dropped=dropped)


def maintain(lake: Lake, maintenance: Maintenance | None = None, *, refresh: bool = True) -> None:
    """Maintain the tables that the last batch of `lake` wrote until none is due; then record the results in it."""
    given = maintenance or maintenance_of(lake.root)
    written = lake.written
    given.report(written, lake.upkeep)
    steps = 0
    while given.step():
        steps += 1
        assert steps < STEPS_MAX * len(written), "it repeats work that is done"
    results = given.take_results() if refresh else None
    if results is not None:
        lake.record_maintenance(results.committed, results.damaged)
        lake.refresh()
