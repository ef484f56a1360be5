"""`cdcctl check`: every connection is timed, and a broken one is named."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.processes.captures import running
from tests.support.processes.cdcctl import Done, cdcctl, reported, succeeded
from tests.support.processes.failover import Pair, paired
from tests.support.servers.archiving import ArchivingServer
from tests.support.servers.postgres import Cluster
from tidemark.io.archive.spool import Spool
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.readers.progress_file import record_progress
from tidemark.model.errors import ExitCode

SOON_S = "10"
PAUSED_LOG = {
    "database": "5",
    "relation": "16400",
    "table": "public.a b",
    "target": "log",
    "kind": "paused",
    "reason": "Read-only file system",
    "after": "1:0/1:0",
}


def check(pair: Pair, *arguments: str) -> Done:
    return cdcctl("check", "--json", *arguments, "--state", pair.sidecar.folder.root, **pair.sidecar.options)


def verdicts(done: Done) -> dict[str, str]:
    return {name: leg["verdict"] for name, leg in json.loads(done.out)["legs"].items()}


def broken(done: Done, *said: str) -> dict[str, str]:
    """Check that it failed with this text and a hint; return the verdicts."""
    assert done.code == ExitCode.UNEXPECTED, done.err
    message, hint = reported(done.err)
    for words in said:
        assert words in message, message
    assert hint
    assert json.loads(done.out)["arrived"] is False
    return verdicts(done)


@pytest.mark.feature("I44")
def test_a_marker_arrives_through_every_leg_in_realtime_and_through_the_archive(pair: Pair) -> None:
    with OutboxReader.open(pair.sidecar.folder) as reader:
        reader.register("lake")
        pair.node.sql("INSERT INTO account VALUES (1)")
        pair.catch_up()
        reader.confirm("lake", reader.head(), reader.head())
    done = succeeded(check(pair))
    assert set(verdicts(done).values()) == {"passed"}
    for leg in json.loads(done.out)["legs"].values():
        assert 0 <= leg["after_s"] < leg["deadline_s"] == 60
    assert json.loads(done.out)["delivering"] == "sidecar"
    state = ("--state", pair.sidecar.folder.root)
    succeeded(cdcctl("realtime", "off", *state, **pair.sidecar.options))
    done = succeeded(check(pair))
    assert verdicts(done) == {**dict.fromkeys(("node", "archive", "consumer", "readers"), "passed"), "capture": "rests"}
    assert json.loads(done.out)["delivering"] == "archiver"
    text = succeeded(cdcctl("check", *state, **pair.sidecar.options)).out.decode()
    assert "archive   passed after" in text


@pytest.mark.feature("I44")
def test_a_reader_that_does_not_confirm_is_named(pair: Pair) -> None:
    with OutboxReader.open(pair.sidecar.folder) as reader:
        reader.register("lazy")
        pair.node.sql("INSERT INTO account VALUES (1)")
        pair.catch_up()
    found = broken(check(pair, "--deadline-s", SOON_S), "leg readers is broken", "lazy has confirmed 0 of")
    assert found == {**dict.fromkeys(("node", "capture", "archive", "consumer"), "passed"), "readers": "broken"}


@pytest.mark.feature("I44")
@pytest.mark.parametrize(
    ("found", "said", "remedy"),
    [
        (
            {"faults": [PAUSED_LOG, PAUSED_LOG | {"target": "replica"}]},
            "lake: the outbox keeps the changes of paused tables: public.a b log and 1 more (Read-only file system)",
            "cdcctl table resume 'public.a b'",
        ),
        ({"waits_for_room": "no space left in /lake"}, "lake: no space left in /lake", "free space on that disk"),
        ({"waits_for_store": "503 of s3://lake"}, "lake: 503 of s3://lake", "the pipeline's log"),
    ],
)
def test_a_pipeline_that_waits_is_named_with_its_remedy(
    pair: Pair, found: Mapping[str, object], said: str, remedy: str
) -> None:
    with OutboxReader.open(pair.sidecar.folder) as reader:
        reader.register("lake")
        pair.node.sql("INSERT INTO account VALUES (1)")
        pair.catch_up()
    report = {"reader": "lake", "lake": "/lake", "lsn": "0/1", "tables": 1, **found}
    record_progress(pair.sidecar.folder, "lake", json.dumps(report).encode())
    done = check(pair, "--deadline-s", "2")
    assert broken(done, "lake has confirmed 0 of", said)["readers"] == "broken"
    _message, hint = reported(done.err)
    assert remedy in hint
    assert "reader drop" not in hint, "it would discard what the tables need"


@pytest.mark.feature("I44")
def test_a_dead_archiver_breaks_the_archives_leg_alone(pair: Pair) -> None:
    pair.archiver.kill()
    found = broken(check(pair), "leg archive is broken: the archiver does not run")
    assert (found["capture"], found["archive"], found["consumer"]) == ("passed", "broken", "passed")
    pair.sidecar.kill()
    found = broken(check(pair), "leg capture is broken: the sidecar does not run")
    assert (found["node"], found["archive"], found["consumer"]) == ("passed", "broken", "waits")


@pytest.mark.feature("I44")
def test_a_dead_sidecar_breaks_the_captures_leg_and_the_archiver_delivers_the_marker(pair: Pair) -> None:
    pair.sidecar.kill()
    found = broken(check(pair), "leg capture is broken: the sidecar does not run")
    assert found == {
        "node": "passed",
        "capture": "broken",
        "archive": "passed",
        "consumer": "passed",
        "readers": "rests",
    }


@pytest.mark.feature("I44")
def test_an_archive_command_that_fails_breaks_the_archives_leg_in_both_modes(pair: Pair) -> None:
    pair.node.configure(archive_command="false")
    done = check(pair, "--deadline-s", SOON_S)
    assert f"waiting at most {SOON_S} s for leg archive" in done.err
    found = broken(done, "leg archive is broken", "archive_command fails with 0000")
    assert (found["capture"], found["archive"], found["consumer"]) == ("passed", "broken", "passed")
    succeeded(cdcctl("realtime", "off", "--state", pair.sidecar.folder.root, **pair.sidecar.options))
    found = broken(check(pair, "--deadline-s", SOON_S), "leg archive is broken", "archive_command fails with 0000")
    assert (found["capture"], found["archive"], found["consumer"]) == ("rests", "broken", "waits")


@pytest.mark.feature("I44")
def test_an_archive_mode_that_is_off_breaks_the_archives_leg_before_the_deadline(
    cluster: Cluster, tmp_path: Path
) -> None:
    ((identifier,),) = cluster.sql("SELECT system_identifier FROM pg_control_system()")
    spool = Spool(tmp_path / "spool")
    spool.create(int(str(identifier)))
    ring = {"TIDEMARK_RING__BYTES_MAX": str(64 << 20)}
    with paired(ArchivingServer(cluster, spool), tmp_path, options=ring) as both:
        found = broken(check(both), f"archive_mode is off on the node: no program fills {spool.folder}")
    assert (found["capture"], found["archive"], found["consumer"]) == ("passed", "broken", "passed")


@pytest.mark.feature("I44")
def test_a_node_that_is_down_breaks_the_first_leg_and_all_others_wait(pair: Pair) -> None:
    pair.node.stop()
    try:
        found = broken(check(pair), "leg node is broken: no marker can be written")
    finally:
        pair.node.start()
    assert set(found.values()) == {"broken", "waits"}


def test_a_marker_arrives_where_no_archive_is_configured(cluster: Cluster, tmp_path: Path) -> None:
    with running(cluster, "postgres", tmp_path) as sidecar:
        done = succeeded(cdcctl("check", "--json", "--state", sidecar.folder.root, **sidecar.options))
    assert verdicts(done) == {
        **dict.fromkeys(("node", "capture", "consumer"), "passed"),
        **dict.fromkeys(("archive", "readers"), "rests"),
    }
