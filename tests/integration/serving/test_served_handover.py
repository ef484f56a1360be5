"""A hand-over between sidecar and archiver, while a client reads from the outbox server."""

import stat
from pathlib import Path

from tests.support.processes.failover import archiving_node, paired
from tests.support.processes.served_outbox import served_outbox
from tidemark.io.flight.flight_outbox import FlightOutbox
from tidemark.io.flight.server_address import ServerAddress
from tidemark.model.mode import Stage
from tidemark.model.position import NO_SEQUENCE
from tidemark.wire.values import ValueKind


def test_a_hand_over_disconnects_no_client(tmp_path: Path) -> None:
    with archiving_node() as node, paired(node, tmp_path) as pair:
        node.node.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        state = pair.sidecar.folder.root
        assert stat.S_IMODE((state / "server.token").stat().st_mode) == 0o600, "cdcctl init has created it"
        with served_outbox(state) as server:
            outbox = FlightOutbox(ServerAddress.parse(f"grpc+unix://{state / 'server.sock'}"))
            pair.insert(1)
            pair.catch_up()
            pair.switch_off()
            pair.wait_for_stage(Stage.HELD)
            pair.insert(2)
            pair.catch_up()
            values = outbox.read(NO_SEQUENCE, outbox.head(), lambda header: header.kind is ValueKind.BATCH)
            assert sum(value.header.row_count for value in values) == 2
            assert server.poll() is None
