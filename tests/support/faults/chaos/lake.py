"""Spark as the target: one long-lived driver, killed and started again where a target without Spark would pause.

Its change log is compared with test_decoding, its replicas with the tables.
"""

from tests.support.oracles.log_oracle import LogTally, ServerLog, check_log
from tests.support.processes.captures import Sidecar
from tests.support.processes.spark_process import SparkProcess
from tests.support.servers.postgres import Cluster
from tidemark.io.process.lake_config import DEFAULT_LAKE
from tidemark.pipeline.lake.comparison import compare
from tidemark.runtime.recovery.lake_inventory import lake_inventory
from tidemark.runtime.recovery.rebuild import LakeInventory
from tidemark.wire.state.values import Identity

BATCH_BYTES = 8 << 20  # a batch of any size takes seconds
OUTBOX_BYTES = 4 * BATCH_BYTES
COMPARED_S = 120.0


class LakeTarget:
    """A pipeline into a lake."""

    def __init__(self, sidecar: Sidecar) -> None:
        root = sidecar.log_path.parent
        self._sidecar = sidecar
        self._spark = SparkProcess(sidecar.folder.root, root / "lake", root / "spark.log", batch_bytes=BATCH_BYTES)

    def start(self) -> None:
        """Start the driver."""
        self._spark.start()

    def pause(self) -> None:
        """SIGKILL of the driver."""
        self._spark.end_all()

    def resume(self) -> None:
        """Start it again."""
        if not self._spark.running:
            self._spark.start()

    def check(self) -> None:
        """Do nothing: the final check finds errors."""

    def contains_all(self) -> bool:
        """Return whether the lake has all delivered changes."""
        assert self._spark.running, self._spark.log()
        return self._spark.is_drained()

    def contains_any(self) -> bool:
        """Return whether the lake has at least one batch."""
        return self._spark.sequence > 0

    def leave(self) -> None:
        """End the driver; its checkpoint was in the state."""
        self._spark.end_all()

    def inventory(self, identity: Identity) -> LakeInventory | None:
        """Return the lake inventory."""
        return lake_inventory(str(self._spark.lake), identity, DEFAULT_LAKE)

    def rejoin(self) -> None:
        """Start the driver."""
        self._spark.start()

    def verdict(self, server: ServerLog, node: Cluster) -> LogTally:
        """Check that log and replicas equal the source."""
        _, tables = compare(node.dsn(self._sidecar.database), self._sidecar.folder, str(self._spark.lake), COMPARED_S)
        different = [table for table in tables if not table.identical]
        assert not different, different
        return check_log(server, self._sidecar.folder, self._spark.lake)

    def close(self) -> None:
        """End the driver and all its child processes."""
        self._spark.end_all()
