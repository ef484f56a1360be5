"""Plug-ins in a daemon: masks before the outbox and the lake, the record in the state, and faults by exit code."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lakes.lakes import event_rows, feed_by_hand, log_rows, replica_rows
from tests.support.plugins import EXAMPLES
from tests.support.plugins.daemons import file_rows, use_config
from tests.support.processes.captures import Sidecar, change_log, initialised
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.processes.failover import Archiver
from tests.support.processes.waiting import let_pass
from tests.support.servers.postgres import Cluster
from tidemark.engine.selection import Selection
from tidemark.io.readers.opened_outbox import open_once
from tidemark.io.readers.outbox_use import OutboxUnused
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ExitCode
from tidemark.pipeline.driver.capture_place import StatePlace

PLUGINS = "tests.support.plugins.bad_plugins"
MASK = "[[transforms]]\nuse = 'tidemark:Mask'\ncolumns = ['public.person.email']\nconstant = 'masked'\n"
CANARY = "canary-of-the-source"
KILLS = 2  # after the one in the first copy
SEED = 20261127
UNMASKED = ("copy", "spill", "history")  # of the state folder: waiting WAL, open transactions, constants of DDL
OLD_ROWS = 2_000


@pytest.fixture
def sidecar(cluster: Cluster, database: str, tmp_path: Path) -> Iterator[Sidecar]:
    """A state over a database with a table, no process started."""
    cluster.sql("CREATE TABLE person (id int PRIMARY KEY, email text, note text)", database)
    with initialised(cluster, database, tmp_path) as made:
        yield made


def files_with(text: str, folder: StateFolder, *others: Path) -> list[str]:
    """Return the files of a state and of `others` that contain a text, except where WAL is kept as it is."""
    found = [path for path in folder.root.rglob("*") if path.is_file()]
    checked = [path for path in found if path.relative_to(folder.root).parts[0] not in UNMASKED]
    return [str(path) for path in (*checked, *others) if text.encode() in path.read_bytes()]


@pytest.mark.feature("N15")
def test_masked_values_reach_no_file_of_ours_through_copies_kills_and_rewrites(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    """NB: the notes show that the search finds what is not masked."""
    cluster.sql("CREATE TABLE person (id int PRIMARY KEY, email text DEFAULT 'x', note text)", database)
    rows = f"SELECT n, '{CANARY}-' || n, 'plain-note-' || n"
    cluster.sql(f"INSERT INTO person {rows} FROM generate_series(1, {OLD_ROWS}) n", database)
    small = {"TIDEMARK_DELIVER__GROUP_ROWS_MAX": "200", "TIDEMARK_DECODE__MEMORY_BYTES": str(1 << 20)}
    sidecar = Sidecar(cluster, database, tmp_path, copy=True, **small)
    use_config(MASK.replace("email", "e*"), sidecar)
    sidecar.init()
    dice = random.Random(SEED)
    try:
        sidecar.start()
        let_pass(dice.uniform(0, 0.3), "a random moment of the copy")
        sidecar.kill()
        assert files_with(CANARY, sidecar.folder, sidecar.log_path) == []
        sidecar.start()
        sidecar.catch_up()
        for kill in range(KILLS):
            first = OLD_ROWS + 1 + kill * OLD_ROWS
            cluster.sql(f"INSERT INTO person {rows} FROM generate_series({first}, {first + OLD_ROWS - 1}) n", database)
            cluster.sql(f"UPDATE person SET email = '{CANARY}-again' WHERE id % 7 = {kill}", database)
            let_pass(dice.uniform(0, 0.3), "a random moment of the stream")
            sidecar.kill()
            assert files_with(CANARY, sidecar.folder, sidecar.log_path) == []
            sidecar.start()
        cluster.sql(f"ALTER TABLE person ADD COLUMN extra text DEFAULT '{CANARY}-constant'", database)
        cluster.sql(f"ALTER TABLE person ALTER COLUMN email SET DEFAULT '{CANARY}-default'", database)
        cluster.sql("ALTER TABLE person ALTER COLUMN note TYPE varchar(40)", database)
        items = sidecar.catch_up()
        feed_by_hand(sidecar.folder, tmp_path / "lake", "by_hand")
        assert files_with(CANARY, sidecar.folder, sidecar.log_path) == []
    finally:
        sidecar.close()
    found = change_log(items, "person")
    assert {after["email"] for row in found if isinstance(after := row["_after"], dict)} == {"masked"}
    assert {"c", "i", "u", "r"} <= {row["_op"] for row in found}
    assert files_with("plain-note-", sidecar.folder) == [str(sidecar.folder.root / "lmdb" / "data.mdb")]
    (folder,) = (tmp_path / "lake").glob("*/public/person")
    replica = replica_rows(tmp_path / "lake", str(folder.relative_to(tmp_path / "lake")))
    assert len(replica) == (KILLS + 1) * OLD_ROWS
    assert {(row["email"], row["extra"]) for row in replica} == {("masked", "masked")}
    for name in UNMASKED:
        for path in (sidecar.folder.root / name).rglob("*"):
            assert path.stat().st_mode & 0o077 == 0, path


def test_rows_pass_transforms_before_a_plugin(sidecar: Sidecar, tmp_path: Path) -> None:
    file, described = tmp_path / "changes.db", tmp_path / "described"
    consumer = "tests.support.plugins.recording:DescribingConsumer"
    use_config(
        f"[deliver]\nconsumer = '{consumer}'\n[consumer]\nfile = '{file}'\ndescribed = '{described}'\n"
        + MASK.replace("email", "e*"),
        sidecar,
    )
    sidecar.start()
    sidecar.cluster.sql(f"INSERT INTO person VALUES (1, '{CANARY}', 'n')", sidecar.database)
    sidecar.cluster.sql(f"ALTER TABLE person ADD COLUMN extra text DEFAULT '{CANARY}-constant'", sidecar.database)
    sidecar.cluster.sql("INSERT INTO person (id) VALUES (2)", sidecar.database)
    sidecar.wait_until(lambda: len(file_rows(file, "public.person")) == 2, "the rows")
    assert sidecar.stop() == ExitCode.SUCCESS
    assert [row.after for row in file_rows(file, "public.person")] == [
        '{"id": 1, "email": "masked", "note": "n"}',
        '{"id": 2, "email": null, "note": null, "extra": "masked"}',
    ]
    assert "SchemaEvent" in described.read_text()
    assert files_with(CANARY, sidecar.folder, sidecar.log_path, file, described) == []
    shown = succeeded(cdcctl("status", "--state", sidecar.folder.root, "--json")).out.decode()
    assert f'"consumer": "{consumer}"' in shown
    assert "tidemark.transforms.masks:Mask" in shown


def test_a_custom_transform_runs_before_the_outbox(sidecar: Sidecar) -> None:
    folders = (os.environ.get("PYTHONPATH", ""), str(EXAMPLES / "tidemark-email-domain"))
    sidecar.options["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    use_config("[[transforms]]\nuse = 'tidemark_email_domain:EmailDomain'\ncolumn = 'email'\n", sidecar)
    sidecar.start()
    sidecar.cluster.sql(f"INSERT INTO person VALUES (1, '{CANARY}@x.org', 'n')", sidecar.database)
    sidecar.cluster.sql(f"UPDATE person SET email = '{CANARY}' WHERE id = 1", sidecar.database)
    found = change_log(sidecar.catch_up(), "person")
    assert [row["_after"] for row in found] == [
        {"id": 1, "email": "x.org", "note": "n"},
        {"id": 1, "email": None, "note": "n"},
    ]
    sidecar.cluster.sql("ALTER TABLE person RENAME email TO mail", sidecar.database)
    sidecar.cluster.sql(f"INSERT INTO person VALUES (2, '{CANARY}@y.org', 'n')", sidecar.database)
    sidecar.ended(ExitCode.CONFIG, "the column email of public.person, which is masked or dropped, is now mail")
    assert files_with(CANARY, sidecar.folder, sidecar.log_path) == []


def test_a_state_refuses_another_consumer_and_names_both(sidecar: Sidecar) -> None:
    accepting = f"[deliver]\nconsumer = '{PLUGINS}:AcceptingConsumer'\n"
    use_config(accepting, sidecar)
    sidecar.start()
    assert sidecar.stop() == ExitCode.SUCCESS
    nothing = f"delivers to {PLUGINS}:AcceptingConsumer, and nothing to its outbox"
    served = cdcctl("run", "server", "--state", sidecar.folder.root)
    assert (served.code, nothing in served.err) == (ExitCode.CONFIG, True)
    with pytest.raises(OutboxUnused, match=nothing), StatePlace(sidecar.folder, Selection()).open():
        pass
    with pytest.raises(OutboxUnused, match=nothing):  # a query of Spark
        open_once(sidecar.folder)
    use_config("", sidecar)
    other = sidecar.refuses(
        ExitCode.CONFIG, f"deliver.consumer is outbox, and this state delivers to {PLUGINS}:AcceptingConsumer"
    )
    assert f"restore deliver.consumer = '{PLUGINS}:AcceptingConsumer'" in str(other["hint"])
    use_config(accepting, sidecar)
    sidecar.start()


def test_a_daemon_with_other_transforms_than_the_running_one_is_refused(sidecar: Sidecar, tmp_path: Path) -> None:
    (tmp_path / "wal").mkdir()
    archiver = Archiver(sidecar.cluster, sidecar.database, tmp_path, TIDEMARK_ARCHIVE__FOLDER=str(tmp_path / "wal"))
    use_config(MASK, sidecar)
    use_config(MASK.replace("masked", "hidden"), archiver)
    sidecar.start()
    try:
        refused = archiver.refuses(
            ExitCode.CONFIG, "the configuration of the archiver has tidemark.transforms.masks:Mask"
        )
        assert "the sidecar, which runs" in str(refused["error"])
        assert "stop both daemons" in str(refused["hint"])
        assert sidecar.stop() == ExitCode.SUCCESS
        archiver.start()  # the operator has changed both, and starts with this one
        sidecar.refuses(ExitCode.CONFIG, "and the archiver, which runs, has")
    finally:
        archiver.close()


def test_different_versions_of_a_plugin_are_reported(sidecar: Sidecar, tmp_path: Path) -> None:
    (tmp_path / "wal").mkdir()
    archiver = Archiver(sidecar.cluster, sidecar.database, tmp_path, TIDEMARK_ARCHIVE__FOLDER=str(tmp_path / "wal"))
    use_config(f"[deliver]\nconsumer = '{PLUGINS}:VersionedConsumer'\n", sidecar, archiver)
    archiver.options["PLUGIN_VERSION"] = "8"
    sidecar.start()
    try:
        archiver.start()
        event = archiver.wait_for_event("sidecar and archiver have different versions of a plug-in")
        assert event["versions"] == {"archiver": "8", "sidecar": "7"}
        assert event["plugin"] == f"{PLUGINS}:VersionedConsumer"
    finally:
        archiver.close()


@pytest.mark.parametrize(
    ("text", "code", "reported"),
    [
        (f"[deliver]\nconsumer = '{PLUGINS}:RaisingConsumer'", ExitCode.CONSUMER_FAILED, "raised ValueError: no"),
        (MASK.replace("email", "mail"), ExitCode.CONFIG, "public.person has no column mail; its columns are id, email"),
    ],
)
def test_a_daemon_refuses_a_wrong_plugin_at_its_start(
    sidecar: Sidecar, text: str, code: ExitCode, reported: str
) -> None:
    """NB: `test_plugin_config` has the other faults of a configuration."""
    use_config(text, sidecar)
    sidecar.refuses(code, reported)


def test_a_plugin_that_calls_exit_ends_the_daemon_as_any_error_does(sidecar: Sidecar) -> None:
    use_config(f"[deliver]\nconsumer = '{PLUGINS}:ExitingConsumer'\nretries_max = 0\n", sidecar)
    sidecar.start()
    sidecar.cluster.sql("INSERT INTO person VALUES (1, 'a')", sidecar.database)
    sidecar.ended(ExitCode.CONSUMER_FAILED, "the consumer ExitingConsumer raised SystemExit in on_events")


def test_a_transform_that_a_new_version_does_not_fit_stops_before_its_rows_and_loses_none(sidecar: Sidecar) -> None:
    use_config(MASK, sidecar)
    sidecar.start()
    for statement in (
        f"INSERT INTO person VALUES (1, '{CANARY}')",
        "ALTER TABLE person RENAME COLUMN email TO mail",
        f"INSERT INTO person VALUES (2, '{CANARY}')",
    ):
        sidecar.cluster.sql(statement, sidecar.database)
    sidecar.ended(ExitCode.CONFIG, "public.person has no column email; its columns are id, mail, note")
    use_config(MASK.replace("email", "email|mail"), sidecar)
    sidecar.start()
    rows = [row["_after"] for row in change_log(sidecar.catch_up(), "person")]
    assert rows == [{"id": 1, "email": "masked", "note": None}, {"id": 2, "mail": "masked", "note": None}]
    assert files_with(CANARY, sidecar.folder, sidecar.log_path) == []


def test_an_error_of_a_transform_and_a_silent_serializer_end_the_daemon_without_a_value(sidecar: Sidecar) -> None:
    consumer = f"[deliver]\nconsumer = '{PLUGINS}:AcceptingConsumer'\n"
    use_config(f"{consumer}serializer = '{PLUGINS}:SilentSerializer'\n", sidecar)
    sidecar.start()
    sidecar.cluster.sql(f"INSERT INTO person VALUES (1, '{CANARY}')", sidecar.database)
    sidecar.ended(ExitCode.CONSUMER_FAILED, "SilentSerializer returned NoneType for public.person")
    use_config(f"{consumer}[[transforms]]\nuse = 'tidemark:OnRow'\nfunction = '{PLUGINS}:leaking'\n", sidecar)
    sidecar.start(wait=False)
    sidecar.ended(ExitCode.CONSUMER_FAILED, "OnRow(leaking) raised ValueError on rows of public.person")
    assert files_with(CANARY, sidecar.folder, sidecar.log_path) == []


@pytest.mark.feature("P15")
def test_a_changed_key_of_a_mask_is_an_event_in_the_outbox_and_in_the_lake(sidecar: Sidecar, tmp_path: Path) -> None:
    lake, keys = tmp_path / "lake", [tmp_path / "first.key", tmp_path / "second.key"]
    for number, key in enumerate(keys):
        key.write_bytes(bytes([number]) * 32)
        key.chmod(0o600)
        mask = f"[[transforms]]\nuse = 'tidemark:Mask'\ncolumns = ['public.person.email']\nkey = {{file = '{key}'}}\n"
        use_config(mask, sidecar)
        for row in (1, 2):  # with a start between them that changes nothing
            sidecar.start()
            sidecar.cluster.sql(f"INSERT INTO person VALUES ({10 * number + row}, 'x', 'n')", sidecar.database)
            sidecar.catch_up()
            assert sidecar.stop() == ExitCode.SUCCESS
        feed_by_hand(sidecar.folder, lake, "by_hand")
    (folder,) = lake.glob("*/public/person")
    (event,) = [row for row in event_rows(lake) if '"effect":"transforms"' in str(row["item"])]
    log = log_rows(lake, str(folder.relative_to(lake)))
    masks = {row["id"]: row["email"] for row in log}
    assert masks[1] == masks[2] != masks[11] == masks[12]
    lsns = [int(str(row["_commit_lsn"])) for row in (log[1], event, log[2])]
    assert lsns == sorted(set(lsns))
    assert len(replica_rows(lake, str(folder.relative_to(lake)))) == 4
