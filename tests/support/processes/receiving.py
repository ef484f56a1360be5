"""A network thread for tests."""

from tests.support.servers.postgres import Cluster
from tidemark.engine.progress import Progress
from tidemark.engine.retry import Backoff
from tidemark.io.host.log_output import get_log
from tidemark.io.node.replication import WalStream
from tidemark.io.process.metrics import Metrics
from tidemark.runtime.capture.network import NetworkThread, WalSink
from tidemark.runtime.capture.stream_lease import StreamLease


class Receiver(NetworkThread):
    """Streams from a node into a sink that ends on the node's timeline; counts how often it is stopped."""

    def __init__(self, node: Cluster, sink: WalSink, progress: Progress, lease: StreamLease | None = None) -> None:
        lease = lease or StreamLease()
        with WalStream(node.dsn()) as stream:
            identity = stream.identify()
        super().__init__(
            node.dsn(),
            sink,
            system_identifier=identity.system_identifier,
            timeline=identity.timeline,
            progress=progress,
            arrived=lease.arrived,
            lease=lease,
            metrics=Metrics("main"),
            log=get_log("test"),
            backoff=Backoff(0.1, 1.0),
            reconnect_share=0.25,
            overflows=False,
        )
        self.stops = 0

    def stop(self) -> None:
        self.stops += 1
        super().stop()
