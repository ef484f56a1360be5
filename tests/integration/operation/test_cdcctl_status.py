"""`cdcctl status` from the folders alone: both processes dead, the node down, a hole in the archive."""

import json
from pathlib import Path

import pytest

from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.processes.failover import archiving_node, paired
from tidemark.io.readers.outbox import OutboxReader


@pytest.mark.feature("I41")
def test_mode_pointers_lags_and_holes_are_reported_with_everything_dead(tmp_path: Path) -> None:
    with archiving_node() as node, paired(node, tmp_path) as pair:
        pair.node.sql("CREATE TABLE account (id int PRIMARY KEY)")
        place = ("--state", pair.sidecar.folder.root)
        with OutboxReader.open(pair.sidecar.folder) as reader:
            reader.register("lake")
        pair.node.sql("INSERT INTO account VALUES (1)")
        pair.catch_up()
        alive = json.loads(succeeded(cdcctl("status", "--json", *place, **pair.sidecar.options)).out)
        assert alive["delivering"] == "sidecar"
        assert pair.sidecar.process is not None
        assert pair.archiver.process is not None
        assert alive["sidecar"]["pid"] == pair.sidecar.process.pid
        assert alive["archiver"]["pid"] == pair.archiver.process.pid
        succeeded(cdcctl("realtime", "off", *place, **pair.sidecar.options))
        pair.sidecar.stop()
        pair.archiver.kill()
        missing, *_ = pair.archiving.switch(3)
        pair.archiving.wait_until_archived()
        pair.node.stop()
        (pair.archiving.spool.folder / missing).unlink()
        done = succeeded(cdcctl("status", "--json", *place, **pair.sidecar.options))
        text = succeeded(cdcctl("status", *place, **pair.sidecar.options)).out.decode()
    found = json.loads(done.out)
    assert (found["sidecar"], found["archiver"], found["delivering"]) == ("not running", "not running", "nobody")
    assert (found["mode"], found["stage"]) == ("archive", "held")
    assert found["reason"] == "the operator switched realtime off"
    assert found["owner"].startswith(f"archiver, process {pair.archiver.process.pid} on ")
    assert found["delivered"]["position"] >= alive["delivered"]["position"]
    assert found["delivered"]["restart_lsn"]
    lag = found["lag"]
    assert lag["delivered_behind_archive"]["segments"] > 2
    assert lag["delivered_behind_archive"]["bytes"] > 2 << 20
    assert lag["unconfirmed_values"] == found["outbox"]["head"] > 0
    assert found["readers"]["lake"]["behind"] == found["outbox"]["head"]
    assert "WAL from " in found["archive"]["delivered"]
    assert missing in found["archive"]["delivered"]
    assert len(found["archive"]["runs"]) == 2
    for words in ("stage", "held", "nobody", "not running", missing):
        assert words in text
