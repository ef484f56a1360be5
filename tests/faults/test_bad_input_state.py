"""A state folder that is missing, damaged, full, too new or in use: the error of each command, without any change.

The files are damaged from outside, as by a disk, a copy or another program; once restored, all changes arrive.
"""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes.captures import Sidecar, change_log, replayed
from tests.support.processes.cdcctl import cdcctl, refused
from tests.support.servers.postgres import Cluster
from tidemark.io.state.environment import Environment
from tidemark.io.state.state import StateStore
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import format_lsn
from tidemark.wire.envelope import seal
from tidemark.wire.keys import named
from tidemark.wire.state.state_keys import HISTORY, IDENTITY

pytestmark = pytest.mark.usefixtures("forked")

PAGE_BYTES = 4096
MAP_BYTES_AT = 32  # in each of LMDB's two meta pages: mm_mapsize, after a page header of 16 and 16 bytes of MDB_meta


@pytest.fixture
def sidecar(node: Cluster, sidecar: Sidecar) -> Sidecar:
    """A state with one delivered row, whose sidecar is stopped while a second row is written."""
    node.sql("INSERT INTO account VALUES (2, 'while down')")
    return sidecar


def assert_goes_on(sidecar: Sidecar) -> None:
    """Check that no change is lost or doubled once the cause is removed."""
    sidecar.start()
    sidecar.cluster.sql("INSERT INTO account VALUES (3, 'at last')")
    assert set(replayed(change_log(sidecar.catch_up(), "account"))) == {1, 2, 3}
    assert sidecar.stop() == ExitCode.SUCCESS


def every_command(state: Path) -> list[tuple[str, ...]]:
    """Return the commands that work on a state without a node."""
    at = ("--state", str(state))
    lake = ("--lake", str(state.parent / "lake"))
    return [
        ("status", *at),
        ("reader", "list", *at),
        ("decode", *at, "--archive", str(state)),
        ("spark", "run", *at, *lake),
    ]


def test_without_a_state_every_command_names_the_folder_and_init(tmp_path: Path) -> None:
    state = tmp_path / "nothing"
    for command in every_command(state)[:-1]:
        refused(cdcctl(*command), ExitCode.STATE, f"no state in {state}")
    for command in (("run", "sidecar", "--state", str(state)), every_command(state)[-1]):
        done = cdcctl(*command)
        assert done.code == ExitCode.STATE, done.err
        assert f"no state in {state}" in done.err
        assert "cdcctl init" in done.err
        assert "Traceback" not in done.err
    assert not state.exists()


def damage(path: Path, change: Callable[[bytes], bytes]) -> Callable[[], object]:
    """Change a file; return a function that restores it."""
    kept = path.read_bytes()
    path.write_bytes(change(kept))
    return lambda: path.write_bytes(kept)


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (lambda content: content[: len(content) // 2], "is truncated"),
        (lambda content: bytes(2 * PAGE_BYTES) + content[2 * PAGE_BYTES :], "is damaged"),
        (lambda _: b"no LMDB file at all", "is damaged"),
    ],
    ids=["truncated", "overwritten", "foreign"],
)
def test_a_data_file_that_is_damaged_is_named_and_left_alone(
    sidecar: Sidecar, change: Callable[[bytes], bytes], reported: str
) -> None:
    path = sidecar.folder.lmdb / "data.mdb"
    mend = damage(path, change)
    broken = path.read_bytes()
    sidecar.refuses(ExitCode.STATE, str(path), reported)
    assert path.read_bytes() == broken
    mend()
    assert_goes_on(sidecar)


def exchange(environment: Environment, place: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Change a value of the state; return the previous one."""
    database = environment.database("state")
    with environment.write() as transaction:
        before = bytes(transaction.get(place, db=database) or b"")
        transaction.put(place, change(before), db=database)
    return before


def newer(stored: bytes) -> bytes:
    """Seal it as a later version does."""
    return seal(stored[5:], 200)


def torn(stored: bytes) -> bytes:
    """Flip one bit of it."""
    return stored[:-1] + bytes([stored[-1] ^ 1])


@pytest.mark.feature("I24")
@pytest.mark.parametrize(
    ("key", "change", "reported"),
    [(IDENTITY.name, newer, "has format 200"), (HISTORY.name, torn, "checksum mismatch")],
)
def test_a_value_that_is_damaged_or_newer_is_named_and_never_recreated(
    sidecar: Sidecar, key: str, change: Callable[[bytes], bytes], reported: str
) -> None:
    with StateStore.open(sidecar.folder) as store:
        environment, place = store.environment, named(store.scope, key)
        before = exchange(environment, place, change)
        refused(cdcctl("status", "--state", sidecar.folder.root), ExitCode.STATE, key, reported)
        sidecar.refuses(ExitCode.STATE, key, reported)
        exchange(environment, place, lambda _: before)
    assert_goes_on(sidecar)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("base-", lambda content: content[:-3] + b"\0\0\0"),
        ("journal-", lambda _: b""),
        ("journal-", lambda content: content[:-1] + bytes([content[-1] ^ 1])),
    ],
    ids=["base", "journal", "last entry of the journal"],
)
def test_a_file_of_the_catalog_history_that_is_damaged_is_named(
    sidecar: Sidecar, kind: str, change: Callable[[bytes], bytes]
) -> None:
    sidecar.start()
    sidecar.cluster.sql("CREATE TABLE more (a int); DROP TABLE more")
    sidecar.catch_up()
    assert sidecar.stop() == ExitCode.SUCCESS
    path = max(sidecar.folder.history.glob(f"{kind}*"))
    mend = damage(path, change)
    sidecar.refuses(ExitCode.STATE, path.name)
    mend()
    assert_goes_on(sidecar)


@pytest.mark.feature("I24")
def test_an_older_catalog_base_and_the_journal_replace_a_damaged_one(sidecar: Sidecar, node: Cluster) -> None:
    sidecar.options["TIDEMARK_HISTORY__BASE_EVERY_BYTES"] = str(1 << 20)
    sidecar.options["TIDEMARK_ARCHIVE__KEEP_BYTES"] = str(1 << 30)  # and the first base, which no restart needs
    history = sidecar.folder.history
    sidecar.start()
    node.sql("CREATE TABLE more (id int PRIMARY KEY, note text)")  # between the two: only the journal has it
    node.sql(f"SELECT pg_logical_emit_message(true, 'x', repeat('x', {1 << 20}))")

    def restarts_at_another_base() -> bool:
        sidecar.catch_up()
        with StateStore.open(sidecar.folder, read_only=True) as store:
            view = store.view()
        assert view.start is not None
        return len(view.history.bases) > 1 and view.history.bases[-1].lsn <= view.start.restart_lsn

    sidecar.wait_until(restarts_at_another_base, "another base")
    assert sidecar.stop() == ExitCode.SUCCESS
    path = max(history.glob("base-*"))
    damage(path, lambda content: content[:-3] + bytes(3))
    spoilt = path.read_bytes()
    sidecar.start()
    reported = sidecar.wait_for_event("catalog base is damaged; using an older base and the journal")
    assert path.name in str(reported["error"])
    assert sidecar.metric('tidemark_catalog_bases_damaged{capture="main"}') == 1
    node.sql("INSERT INTO account VALUES (3, 'at last'); INSERT INTO more VALUES (4, 'most')")
    items = sidecar.catch_up()
    assert set(replayed(change_log(items, "account"))) == {1, 2, 3}
    assert set(replayed(change_log(items, "more"))) == {4}
    assert sidecar.stop() == ExitCode.SUCCESS
    assert path.read_bytes() == spoilt
    place = ("--state", str(sidecar.folder.root), "--archive", str(node.data / "pg_wal"))
    at = format_lsn(int(path.name.rpartition("-")[2], 16))
    done = cdcctl("decode", *place, "--from", at, "--to", node.flush_lsn(), "--message", "none")
    assert done.code == ExitCode.SUCCESS, done.err
    assert json.loads(done.lines[-1])["after"] == {"id": 4, "note": "most"}
    assert f"the catalog base of {at} is damaged" in done.err
    node.sql("DROP TABLE more")


def test_a_full_map_stops_delivery_by_name_and_a_larger_one_continues(sidecar: Sidecar) -> None:
    path = sidecar.folder.lmdb / "data.mdb"
    used = path.stat().st_size
    sizes = [set_map_bytes(path, used + 8 * PAGE_BYTES)]
    sidecar.cluster.sql("INSERT INTO account SELECT n, repeat(md5(n::text), 40) FROM generate_series(11, 500) n")
    sidecar.start()
    reported = sidecar.wait_for_event("the outbox or its disk is full, delivery waits")
    assert str(sidecar.folder.root) in str(reported["reason"])
    assert sidecar.stop() == ExitCode.SUCCESS
    set_map_bytes(path, *sizes)
    sidecar.start()
    assert set(replayed(change_log(sidecar.catch_up(), "account"))) == {1, 2, *range(11, 501)}


def set_map_bytes(path: Path, size: int) -> int:
    """Write the map's size into both meta pages, which have no checksum; return the previous one."""
    before = 0
    with path.open("r+b") as file:
        for page in range(2):
            file.seek(page * PAGE_BYTES + MAP_BYTES_AT)
            (before,) = struct.unpack("<Q", file.read(8))
            file.seek(page * PAGE_BYTES + MAP_BYTES_AT)
            file.write(struct.pack("<Q", size))
    return int(before)


@pytest.mark.feature("I38")
def test_a_second_sidecar_names_the_first_which_continues_undisturbed(sidecar: Sidecar) -> None:
    sidecar.start()
    assert sidecar.process is not None
    done = cdcctl("run", "sidecar", "--state", sidecar.folder.root, **sidecar.options)
    assert done.code == ExitCode.FENCED
    assert f"a sidecar already runs on {sidecar.folder.root}: process {sidecar.process.pid} on " in done.err
    assert "Traceback" not in done.err
    sidecar.cluster.sql("INSERT INTO account VALUES (3, 'undisturbed')")
    assert set(replayed(change_log(sidecar.catch_up(), "account"))) == {1, 2, 3}


def test_a_file_at_the_folders_path_is_refused(tmp_path: Path, node: Cluster) -> None:
    taken = tmp_path / "taken"
    taken.write_text("not a folder")
    refused(cdcctl("init", "--state", taken, "--dsn", node.dsn()), ExitCode.STATE, str(taken))
    refused(cdcctl("status", "--state", taken), ExitCode.STATE, str(taken))
    assert taken.read_text() == "not a folder"
