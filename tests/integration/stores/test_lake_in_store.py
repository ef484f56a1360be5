"""A lake in an object store: its tables are those of a lake in a folder, also after kills and foreign changes."""

import json
import signal
from collections import Counter
from enum import Enum
from http import HTTPStatus
from statistics import median
from threading import Lock

import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from tests.support.lakes.lakes import CAPTURE, Crash, story
from tests.support.lakes.maintained import maintain, maintenance_of
from tests.support.lakes.scripted_table import DATABASE, ScriptedTable
from tests.support.lakes.stored_lake import FOLDER, StoredLake, changes
from tests.support.servers.metadata_service import metadata_service
from tests.support.servers.object_store import QUICK, Answer, Forward, StoreRequest, refusal
from tidemark.io.host.failpoints import arm
from tidemark.io.process.lake_config import LakeConfig, LakeTableConfig
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import format_lsn
from tidemark.pipeline.delta_log.unused_files import delete_unused_files
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.folders import table_app
from tidemark.pipeline.lake.positions.table_position import TableState
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.landing import lake_reports
from tidemark.pipeline.merge.clustering import recluster
from tidemark.pipeline.replay import program
from tidemark.pipeline.replay.result_target import FIRST_COMMIT
from tidemark.pipeline.sinks.table_writes import LOG_FILE_ROWS, LOG_KEY
from tidemark.pipeline.storage.role_credentials import METADATA_ENDPOINT
from tidemark.pipeline.storage.stores import open_lake, store_of

KILLED_AT = (
    Failpoint.FILES_WRITTEN,
    Failpoint.LOG_APPENDED,
    Failpoint.TABLES_DONE,
)


class CrashAtPoint:
    """Raises `Crash` at one failpoint, and at every one after it."""

    def __init__(self, point: Failpoint) -> None:
        self._point = point
        self._is_dead = False

    def __call__(self, point: Enum) -> None:
        self._is_dead = self._is_dead or point is self._point
        if self._is_dead:
            raise Crash(point)


@pytest.mark.feature("L07")
def test_a_lake_in_a_store_equals_its_source_and_is_read_by_another_program(stored: StoredLake) -> None:
    table, batches = story()
    lake = stored.opened()
    for number, items in enumerate(batches):
        lake = stored.feed(items, lake if number % 3 else None)
    stored.check(table)
    positions = stored.rows("_positions").to_pylist()
    assert {row["folder"] for row in positions} == {"", FOLDER}


@pytest.mark.feature("L07")
def test_nothing_is_lost_or_doubled_when_the_pipeline_is_killed_between_two_requests(stored: StoredLake) -> None:
    table = ScriptedTable()
    stored.feed(changes(table, 0))
    for key, point in enumerate(KILLED_AT, 1):
        items, crash = changes(table, key), CrashAtPoint(point)
        arm(crash)
        try:
            with pytest.raises(Crash):
                stored.feed(items)
        finally:
            arm(None)
        stored.feed(items)
    stored.check(table)


@pytest.mark.feature("L07")
def test_a_small_batch_lists_nothing_in_the_store(stored: StoredLake) -> None:
    table, lake = ScriptedTable(), stored.opened()
    for key in (1, 2, 3):
        stored.feed(changes(table, key), lake)
    stored.server.requests.clear()
    for key in range(10, 13):
        stored.feed(changes(table, key), lake)
    methods = [request.method for request in stored.server.requests]
    assert not [request for request in stored.server.requests if request.is_listing]
    # For each batch: data files and commits of log, replica and `_positions`.
    assert methods.count("PUT") == 3 * 6
    # Before that, whether the last commits of log, replica and `_positions` are there (of the latter twice), and no
    # later ones of log and replica. A merge reads a file.
    assert methods.count("HEAD") <= 3 * 6
    assert len(methods) <= 3 * 13
    stored.check(table)


@pytest.mark.feature("L07")
def test_a_lake_is_written_with_the_credentials_of_the_role_of_a_machine(stored: StoredLake) -> None:
    table = ScriptedTable()
    with metadata_service() as service:
        open_lake(stored.root, stored.server.config, {METADATA_ENDPOINT: service.endpoint}, QUICK)
        stored.server.requests.clear()
        stored.feed(changes(table, 1))
        assert {request.access_key for request in stored.server.requests} == {service.key}
    stored.check(table)


def test_partitions_whose_values_need_escapes_are_written_merged_and_deleted(stored: StoredLake) -> None:
    settings = LakeTableConfig("*", partition=("note",))
    table, lake = ScriptedTable(), stored.opened(LakeConfig(tables=(settings,)))
    table.insert({1: 1, 2: "a/b 50%", 3: "x"})
    table.insert({1: 2, 2: "Łódź", 3: None})
    table.cut()
    stored.feed(table.delivered(), lake)
    begun = len(table.items)
    table.commit()
    table.update((1,), {3: "y"})
    table.delete((2,))
    table.cut()
    stored.feed(table.delivered()[begun:], lake)
    stored.check(table)
    assert stored.delta(f"{FOLDER}/replica").metadata().partition_columns == ["note"]


def test_maintenance_of_a_store_combines_files_and_deletes_the_replaced_ones(stored: StoredLake) -> None:
    table, lake = ScriptedTable(), stored.opened()
    for key in range(4):
        stored.feed(changes(table, key), lake)
    uri, app = f"{stored.root}/{FOLDER}/log", table_app(CAPTURE, (DATABASE, table.oid), "log")
    before = stored.delta(f"{FOLDER}/log").file_uris()
    made = recluster(LakeTable(uri, app), LOG_KEY, Lock(), rows_max=LOG_FILE_ROWS)
    assert len(stored.delta(f"{FOLDER}/log").file_uris()) == 1
    assert made is not None
    assert made.is_complete
    assert delete_unused_files(uri, 0, made.version, 100, Lock()) == len(before) == 4
    stored.feed(changes(table, 100), lake)
    stored.check(table)


def test_a_round_of_maintenance_reads_no_commit_often(stored: StoredLake) -> None:
    table, lake, maintenance = ScriptedTable(), stored.opened(), maintenance_of(stored.root)
    stored.feed(changes(table, 0), lake)
    maintain(lake, maintenance)  # writes checkpoints
    for key in range(1, 6):
        stored.feed(changes(table, key), lake)
    stored.server.requests.clear()
    maintain(lake, maintenance)
    asked = [one for one in stored.server.requests if one.key.startswith(f"lake/{FOLDER}/log/_delta_log/")]
    reads = Counter(one.key for one in asked if one.method == "GET" and one.key.endswith(".json"))
    # delta-rs reads a commit twice to open a table: for the work, and for the stream after it. It reads it again to
    # find the unused files. The newest commits are read alone as well.
    assert median(reads.values()) <= 2 * 2 + 1
    assert sum(one.is_listing for one in asked) <= 4
    stored.check(table)


# Foreign changes


def append_foreign(stored: StoredLake, table: str) -> None:
    write_deltalake(
        f"{stored.root}/{FOLDER}/{table}",
        stored.rows(f"{FOLDER}/{table}").slice(0, 1),
        mode="append",
        storage_options=stored.options,
        commit_properties=CommitProperties(custom_metadata={"by": "another"}),
    )


@pytest.mark.feature("L01")
def test_a_replica_in_a_store_that_another_program_changed_diverges_and_a_new_copy_mends_it(
    stored: StoredLake,
) -> None:
    table, lake = ScriptedTable(), stored.opened()
    stored.feed(changes(table, 1), lake)
    append_foreign(stored, "replica")
    before = stored.delta(f"{FOLDER}/replica").version()
    stored.feed(changes(table, 2), lake)
    known = lake.positions.tables[DATABASE, table.oid]
    assert known.state is TableState.DIVERGED
    assert known.replica.fault is not None
    assert "was changed by another writer: WRITE at version" in known.replica.fault.reason
    assert stored.delta(f"{FOLDER}/replica").version() == before, "nothing is written to it"
    begun = len(table.items)
    table.commit()
    table.copy(1, list(table.rows.values()))
    table.commit()
    stored.feed(table.delivered()[begun:], lake)
    assert lake.positions.tables[DATABASE, table.oid].state is TableState.LIVE
    stored.check(table)


@pytest.mark.feature("L01")
def test_a_lost_data_file_in_a_store_is_found_and_the_table_is_set_aside_and_recreated(stored: StoredLake) -> None:
    table, lake = ScriptedTable(), stored.opened()
    stored.feed(changes(table, 1), lake)
    (lost,) = stored.delta(f"{FOLDER}/replica").file_uris()
    store = store_of(stored.root)
    store.delete([lost])
    lake = stored.feed(changes(table, 1 + 1))
    stored.feed([], lake)
    begun = len(table.items)
    table.commit()
    table.update((1,), {2: "again"})
    table.cut()
    stored.feed(table.delivered()[begun:], lake)
    fault = lake.positions.tables[DATABASE, table.oid].replica.fault
    assert fault is not None
    assert f"data file {lost} is missing" in fault.reason
    begun = len(table.items)
    table.commit()
    table.copy(1, list(table.rows.values()))
    table.commit()
    stored.feed(table.delivered()[begun:], lake)
    stored.check(table)
    assert "replica.diverged-1" in store.folders(f"{stored.root}/{FOLDER}")


@pytest.mark.feature("L02")
def test_maintenance_of_a_store_by_another_program_has_no_effect(stored: StoredLake) -> None:
    table, lake = ScriptedTable(), stored.opened()
    for key in range(2):
        stored.feed(changes(table, key), lake)
    for name in ("log", "replica"):
        delta = stored.delta(f"{FOLDER}/{name}")
        delta.optimize.compact()
        delta.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    stored.feed(changes(table, 100), lake)
    assert lake.positions.tables[DATABASE, table.oid].state is TableState.LIVE
    stored.check(table)


# Commands


def test_the_rows_at_a_moment_are_written_to_a_store_as_a_whole_or_not_at_all(
    stored: StoredLake, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    table, lake = ScriptedTable(), stored.opened()
    table.commit()
    table.copy(1, [{1: 1, 2: "copied", 3: None}])
    for note in ("changed", "last"):
        table.commit()
        table.update((1,), {2: note})
    stored.feed(table.delivered(), lake)
    for name, value in stored.server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    to = f"{stored.root.rpartition('/')[0]}/results/orders"
    arguments = [stored.root, "", "public.Orders", format_lsn(table.lsn), to]

    def without_commit(request: StoreRequest, forward: Forward) -> Answer:
        is_commit = request.method == "PUT" and request.key.endswith(FIRST_COMMIT)
        return refusal(HTTPStatus.FORBIDDEN, "AccessDenied") if is_commit else forward()

    with stored.server.failing(without_commit):
        assert program.main(arguments) == ExitCode.STATE
    assert f"{to} cannot be written" in capfd.readouterr().err
    assert any(one.method == "PUT" and one.key.endswith(".parquet") for one in stored.server.requests)
    assert program.main(arguments) == ExitCode.SUCCESS
    assert json.loads(capfd.readouterr().out)["rows"] == 1
    rows = DeltaTable(to, storage_options=stored.options).to_pyarrow_table().to_pylist()
    assert rows == [{"id": 1, "note": "changed", "big": None}]
    assert program.main(arguments) == ExitCode.CONFIG
    assert f"{to} exists" in capfd.readouterr().err


def test_the_commands_show_and_check_a_lake_in_a_store(
    stored: StoredLake, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    table, lake = ScriptedTable(), stored.opened()
    stored.feed(changes(table, 1), lake)
    for name, value in stored.server.environment().items():
        monkeypatch.setenv(name, value)
    assert lake_reports.main(["list", stored.root, ""]) == ExitCode.SUCCESS
    listed = json.loads(capfd.readouterr().out)
    assert (listed["lake"], [one["folder"] for one in listed["tables"]]) == (stored.root, [FOLDER])
    assert lake_reports.main(["describe", stored.root, "", "public.Orders"]) == ExitCode.SUCCESS
    shown = json.loads(capfd.readouterr().out)
    assert shown["delta_tables"]["replica"]["path"] == f"{stored.root}/{FOLDER}/replica"
    assert lake_reports.main(["check", stored.root, ""]) == ExitCode.SUCCESS
    checked = json.loads(capfd.readouterr().out)
    assert (checked["checked"], checked["faults"]) == (2, 0)
    (lost,) = stored.delta(f"{FOLDER}/replica").file_uris()
    store_of(stored.root).delete([lost])
    assert lake_reports.main(["check", stored.root, ""]) == ExitCode.UNEXPECTED
    assert f"data file {lost} is missing" in capfd.readouterr().out
