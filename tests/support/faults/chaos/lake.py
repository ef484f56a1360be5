"""Spark as the target: one long-lived driver, killed and started again where a target without Spark would pause.

Its change log is compared with what the server tells, its replicas with the tables.
"""

from tests.support.oracles.log_oracle import ServerLog, Tally, check_log
from tests.support.processes.captures import Sidecar
from tests.support.processes.spark_process import SparkProcess
from tests.support.servers.postgres import Cluster
from tidemark.pipeline.lake.comparison import compare
from tidemark.runtime.recovery.lake_inventory import lake_inventory
from tidemark.runtime.recovery.rebuild import LakeInventory
from tidemark.wire.state import Identity

BATCH_BYTES = 8 << 20  # a batch costs seconds whatever it holds
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
        """Do nothing: what became of it shows in the end."""

    def holds_all(self) -> bool:
        """Tell if the lake has all that was delivered."""
        assert self._spark.running, self._spark.log()
        return self._spark.is_drained()

    def holds_some(self) -> bool:
        """Tell if a batch came into the lake."""
        return self._spark.sequence > 0

    def leave(self) -> None:
        """End the driver; its checkpoint was in the state."""
        self._spark.end_all()

    def inventory(self, identity: Identity) -> LakeInventory | None:
        """Tell what the lake holds."""
        return lake_inventory(self._spark.lake, identity)

    def rejoin(self) -> None:
        """Start the driver."""
        self._spark.start()

    def verdict(self, server: ServerLog, node: Cluster) -> Tally:
        """See that log and replicas are what the source holds."""
        _, tables = compare(node.dsn(self._sidecar.database), self._sidecar.folder, self._spark.lake, COMPARED_S)
        different = [table for table in tables if not table.identical]
        assert not different, different
        return check_log(server, self._sidecar.folder, self._spark.lake)

    def close(self) -> None:
        """End it and all that it started."""
        self._spark.end_all()
