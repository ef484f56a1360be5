"""The removal of dropped tables from a lake that a test feeds: its steps are taken by the test, in place of threads."""

from tests.support.lakes.lakes import CAPTURE
from tests.support.lakes.maintained import maintenance_of
from tests.support.lakes.swapped_tables import SwappedTables
from tidemark.io.host.log_output import get_log
from tidemark.io.process.lake_config import LakeConfig, LakeTableConfig
from tidemark.pipeline.landing.dropped_tables import DroppedTables
from tidemark.pipeline.landing.metrics import PipelineMetrics

KEEPS_A_DAY = LakeConfig((LakeTableConfig("*.*", dropped_keep_days=1),))
STEPS_MAX = 200


class Removing:
    """The removals of a lake, as one run of a pipeline makes them."""

    def __init__(self, lake: SwappedTables, config: LakeConfig | None = None) -> None:
        self.lake, self.metrics = lake, PipelineMetrics("test")
        config = config or lake.config
        self.dropped = DroppedTables(lake.root, CAPTURE, config, get_log("test"))
        self.maintenance = maintenance_of(lake.root, config, metrics=self.metrics, dropped=self.dropped)

    def work(self) -> None:
        """Let maintenance do what it has to do."""
        steps = 0
        while self.maintenance.step():
            steps += 1
            assert steps < STEPS_MAX, "it repeats work that is done"

    def record(self) -> None:
        """Record the results, as the stream does between two batches, and offer what is next."""
        lake = self.lake.lake
        if self.dropped.record(lake):
            lake.refresh()
        self.dropped.offer(lake)

    def run(self) -> None:
        """Remove the tables that are due."""
        self.record()
        for _ in ("check", "delete"):
            self.work()
            self.record()
