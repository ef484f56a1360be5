"""An object store that fails, slows, refuses, is taken over, or has another clock: nothing is lost or doubled."""

import dataclasses
import os
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from pathlib import Path
from re import sub
from threading import Lock

import pytest
from prometheus_client import CollectorRegistry, Gauge

from tests.support.lakes.lakes import IDENTITY, batch
from tests.support.lakes.maintained import maintain, maintenance_of
from tests.support.lakes.scripted_table import ScriptedTable
from tests.support.lakes.stored_lake import FOLDER, StoredLake, changes
from tests.support.servers.object_store import (
    ENVIRONMENT,
    QUICK,
    Answer,
    ConnectionCut,
    FaultyStore,
    Forward,
    StoreRequest,
    refusal,
)
from tidemark.embedding.library_log import LibraryLog
from tidemark.io.host.log_output import get_log
from tidemark.io.process.lake_config import LakeConfig, LakeTableConfig
from tidemark.model.lsn import SystemIdentifier
from tidemark.pipeline.delta_log.log_cleanup import LogCleanup
from tidemark.pipeline.delta_log.unused_files import delete_unused_files
from tidemark.pipeline.lake.lake_lock import LakeInUse
from tidemark.pipeline.lake.positions.positions import LakeOfAnother
from tidemark.pipeline.lake.tables.table_errors import TableFenced
from tidemark.pipeline.landing import lake_epoch
from tidemark.pipeline.landing.lake_epoch import LakeEpoch, LakeTaken
from tidemark.pipeline.landing.settings_check import BadTableSettings, check_settings
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.storage.outage_wait import AGAIN_S, CONTINUES, FIRST_S, MAX_S, when_available
from tidemark.pipeline.storage.store_errors import BadStore, StoreUnavailable
from tidemark.pipeline.storage.store_wait import StoreWait
from tidemark.pipeline.storage.stores import open_lake, store_of

ATTEMPTS_MAX = 60
FAILING_SHARE = 0.12  # of requests, each of which is repeated once


def is_commit(request: StoreRequest) -> bool:
    return request.method == "PUT" and "/_delta_log/" in request.key and request.key.endswith(".json")


def slow_down(_request: StoreRequest, _forward: Forward) -> Answer:
    return refusal(503, "SlowDown")


def cut_off(_request: StoreRequest, _forward: Forward) -> Answer:
    """Break off a request that the store has received a part of: no object is created."""
    raise ConnectionCut


def answer_lost(_request: StoreRequest, forward: Forward) -> Answer:
    forward()
    raise ConnectionCut


@pytest.mark.feature("L07")
def test_each_change_is_once_in_the_lake_however_the_requests_fail(stored: StoredLake) -> None:
    chance, faults = random.Random(7), (slow_down, cut_off, answer_lost)
    kinds: set[str] = set()

    def fail_sometimes(request: StoreRequest, forward: Forward) -> Answer:
        if chance.random() < FAILING_SHARE:
            fault = chance.choice(faults)
            kinds.add(fault.__name__)
            return fault(request, forward)
        return forward()

    table, lake = ScriptedTable(), stored.opened()
    with stored.server.failing(fail_sometimes):
        for key in range(4):
            items = changes(table, key)
            for _ in range(ATTEMPTS_MAX):
                try:
                    stored.feed(items, lake)
                except StoreUnavailable:
                    lake = _reopened(stored)
                else:
                    break
    assert len(kinds) == len(faults)
    stored.check(table)


def _reopened(stored: StoredLake) -> Lake:
    for _ in range(ATTEMPTS_MAX):
        with suppress(StoreUnavailable):
            return stored.opened()
    raise AssertionError("it never answers")


@pytest.mark.feature("L07")
def test_a_commit_whose_answer_is_lost_is_recognised_as_our_own(stored: StoredLake) -> None:
    table, lake = ScriptedTable(), stored.opened()
    stored.feed(changes(table, 1), lake)
    lost: list[str] = []

    def lose_first_answers(request: StoreRequest, forward: Forward) -> Answer:
        if is_commit(request) and request.key not in lost:
            lost.append(request.key)
            return answer_lost(request, forward)
        return forward()

    with stored.server.failing(lose_first_answers):
        stored.feed(changes(table, 2), lake)
        stored.feed(changes(table, 3))  # tables that are opened again
    assert len(lost) == 7  # of log, replica and `_positions`, and the versions that the opened lake records
    stored.check(table)


@pytest.mark.feature("L07")
def test_a_commit_that_is_refused_beside_another_request_that_leaves_nothing_is_repeated(stored: StoredLake) -> None:
    table, lake = ScriptedTable(), stored.opened()
    stored.feed(changes(table, 1), lake)
    refused: list[str] = []

    def conflict_once(request: StoreRequest, forward: Forward) -> Answer:
        if is_commit(request) and request.key not in refused:
            refused.append(request.key)
            return refusal(409, "ConditionalRequestConflict")
        return forward()

    with stored.server.failing(conflict_once):
        stored.feed(changes(table, 2), lake)
    assert len(refused) == 3
    stored.check(table)


def test_maintenance_goes_on_after_a_store_that_did_not_answer(stored: StoredLake) -> None:
    table, lake = ScriptedTable(), stored.opened()
    stored.feed(changes(table, 1), lake)
    maintenance = maintenance_of(stored.root)
    with stored.server.failing(slow_down):
        maintenance.report(lake.written, lake.upkeep)
        maintenance.step()
    maintain(lake, maintenance)
    stored.check(table)


@pytest.mark.feature("L07")
def test_variables_of_the_environment_lead_to_no_other_store(
    stored: StoredLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")  # nothing answers there
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    open_lake(stored.root, stored.server.config, ENVIRONMENT, QUICK)
    table = ScriptedTable()
    stored.server.requests.clear()
    stored.feed(changes(table, 1))
    assert {request.access_key for request in stored.server.requests} == {ENVIRONMENT["AWS_ACCESS_KEY_ID"]}
    stored.check(table)


@pytest.mark.feature("L07")
def test_a_commit_of_which_nothing_can_be_asked_any_more_is_found_when_the_store_is_back(stored: StoredLake) -> None:
    table, lake = ScriptedTable(), stored.opened()
    stored.feed(changes(table, 1), lake)
    is_gone = False

    def go_after_a_commit(request: StoreRequest, forward: Forward) -> Answer:
        nonlocal is_gone
        if is_gone:
            raise ConnectionCut
        if is_commit(request) and "/replica/" in request.key:
            is_gone = True
            return answer_lost(request, forward)
        return forward()

    items = changes(table, 2)
    with stored.server.failing(go_after_a_commit), pytest.raises(StoreUnavailable):
        stored.feed(items, lake)
    version = stored.delta(f"{FOLDER}/replica").version()
    lake = stored.feed(items)
    assert stored.delta(f"{FOLDER}/replica").version() == version, "no second commit"
    stored.check(table)


# Two writers


def take(stored: StoredLake, state: Path, keys: tuple[str, ...] = ()) -> LakeEpoch:
    return stored.running.enter_context(LakeEpoch.take(stored.root, IDENTITY, state, "spark", keys))


@pytest.mark.feature("L07")
def test_the_younger_of_two_pipelines_wins_and_the_older_ends_with_its_name(stored: StoredLake, tmp_path: Path) -> None:
    older = take(stored, tmp_path / "a")
    older.check()
    table, lake = ScriptedTable(), stored.opened()
    stored.feed(changes(table, 1), lake)
    younger = take(stored, tmp_path / "b")
    younger_lake = stored.opened()
    items = changes(table, 2)
    stored.feed(items, lake)  # the batch in which the older one is taken over
    with pytest.raises(LakeTaken, match=f"was taken over by the pipeline 'spark' .*state {tmp_path}/b, process"):
        older.check()
    with pytest.raises(TableFenced):
        younger_lake.apply(batch(items))
    younger.check()
    assert younger.is_newest, "it opens the lake again"
    stored.feed([*items, *changes(table, 3)])
    stored.check(table)


@pytest.mark.feature("L07")
def test_a_pipeline_whose_epoch_comes_late_takes_a_later_one(
    stored: StoredLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [take(stored, tmp_path / name, ("key",)) for name in "bc"]
    listed = [(0, None)]  # before the others: their objects came while the request for the first epoch was on its way
    newest_holder = lake_epoch.newest_holder
    monkeypatch.setattr(lake_epoch, "newest_holder", lambda root: listed.pop() if listed else newest_holder(root))
    late = take(stored, tmp_path / "a")
    assert not listed
    late.check()
    for other in others:
        with pytest.raises(LakeTaken):
            other.check()


def test_a_store_that_ignores_conditions_is_refused(stored: StoredLake, tmp_path: Path) -> None:
    def ignore_condition(request: StoreRequest, forward: Forward) -> Answer:
        if request.method == "PUT" and "/_pipeline/" in request.key:
            return Answer(200, [("ETag", '"1"')], b"")
        return forward()

    with stored.server.failing(ignore_condition), pytest.raises(BadStore, match="it ignores `If-None-Match`"):
        LakeEpoch.take(stored.root, IDENTITY, tmp_path, "spark", set())


@pytest.mark.feature("L07")
def test_of_two_writers_that_commit_at_the_same_moment_one_is_fenced_and_each_change_is_there_once(
    stored: StoredLake,
) -> None:
    table = ScriptedTable()
    stored.feed(changes(table, 1))
    items, barrier = changes(table, 2), threading.Barrier(2)
    ends: list[str] = []

    def write() -> None:
        lake = stored.opened()
        barrier.wait()
        try:
            stored.feed(items, lake)
        except TableFenced as error:
            ends.append(f"{type(error).__name__}: {error}")
        else:
            ends.append("done")

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ends.count("done") <= 1
    assert any("another writer committed to" in end for end in ends)
    stored.feed(items)
    stored.check(table)


def test_a_pipeline_of_another_capture_ends_none(stored: StoredLake, tmp_path: Path) -> None:
    hold = take(stored, tmp_path)
    other = dataclasses.replace(IDENTITY, system_identifier=SystemIdentifier(78))
    with pytest.raises(LakeInUse, match="is written by the pipeline 'spark' of capture 'test' of the cluster 77"):
        LakeEpoch.take(stored.root, other, tmp_path, "spark", ())
    stored.feed(changes(ScriptedTable(), 1))
    with pytest.raises(LakeOfAnother, match="contains the tables of"):
        LakeEpoch.take(stored.root, other, tmp_path, "spark", ())
    hold.check()


def test_pipelines_of_one_captures_hosts_do_not_end_each_other(stored: StoredLake, tmp_path: Path) -> None:
    first = take(stored, tmp_path / "a", ("key",))
    second = take(stored, tmp_path / "b", ("key",))
    first.check()
    second.check()
    assert (first.is_newest, second.is_newest) == (False, True)
    third = take(stored, tmp_path / "c")
    for hold in (first, second):
        with pytest.raises(LakeTaken):
            hold.check()
    third.check()


# Refusals, and waiting


REFUSALS: tuple[tuple[Callable[[StoreRequest, Forward], Answer], str], ...] = (
    (lambda *_: refusal(403, "InvalidAccessKeyId"), "the store refuses the credentials"),
    (lambda *_: refusal(400, "ExpiredToken"), "the store refuses the credentials"),
    (lambda *_: refusal(404, "NoSuchBucket"), "the bucket does not exist"),
    (lambda *_: refusal(403, "RequestTimeTooSkewed"), "the clocks of this host and of the store differ"),
    (cut_off, "the store does not answer as it should"),
    (slow_down, "the store does not answer as it should"),
)


def test_a_store_that_refuses_is_reported_and_no_table_is_paused(stored: StoredLake) -> None:
    table, lake = ScriptedTable(), stored.opened()
    stored.feed(changes(table, 1), lake)
    items = changes(table, 2)
    for fault, said in REFUSALS:
        with stored.server.failing(fault):
            for opened in (lake, None):
                with pytest.raises(StoreUnavailable, match=said) as refused:
                    stored.feed(items, opened)
            with pytest.raises(StoreUnavailable, match=said):
                store_of(stored.root).check()
        assert "a secret" not in str(refused.value)
    stored.feed(items, lake)
    stored.check(table)


def value_of(gauge: Gauge) -> float:
    (metric,) = gauge.collect()
    return float(metric.samples[0].value)


class SteppedClock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_the_waits_for_a_store_grow_to_a_bound_and_end_when_it_answers(stored: StoredLake) -> None:
    gauge, clock = Gauge("waited", "", registry=CollectorRegistry()), SteppedClock()
    wait = StoreWait(stored.root, gauge, get_log("test"), clock)
    assert wait.has_come()
    wait.record(StoreUnavailable("it is gone"))
    waits_s: list[float] = []
    with stored.server.failing(lambda *_: refusal(403, "AccessDenied")):
        while len(waits_s) < 8:
            begun_s, asked = clock.now_s, len(stored.server.requests)
            while len(stored.server.requests) == asked:
                clock.now_s += 0.1
                assert not wait.has_come()
            waits_s.append(clock.now_s - begun_s)
    assert waits_s[0] < 2 * FIRST_S
    assert MAX_S <= waits_s[-1] <= MAX_S + 1
    assert value_of(gauge) > AGAIN_S
    clock.now_s += MAX_S
    assert wait.has_come()
    assert value_of(gauge) == 0.0


def test_a_pipeline_that_waits_reports_that_it_continues_and_the_error_of_a_command_does_not(
    stored: StoredLake, caplog: pytest.LogCaptureFixture
) -> None:
    wait = StoreWait(stored.root, Gauge("waited", "", registry=CollectorRegistry()), LibraryLog())
    with stored.server.failing(cut_off), pytest.raises(StoreUnavailable) as raised:
        store_of(stored.root).check()
    assert raised.value.hint == "check the bucket, lake.store_endpoint, the network and the credentials"
    wait.record(raised.value)
    assert f"{raised.value.hint}; {CONTINUES}" in caplog.text


def test_the_start_waits_for_the_store_unless_it_runs_once(stored: StoredLake) -> None:
    wait = StoreWait(stored.root, Gauge("waited", "", registry=CollectorRegistry()), get_log("test"))
    stop, tried = threading.Event(), 0

    def attempt() -> str:
        nonlocal tried
        tried += 1
        if tried == 1:
            raise StoreUnavailable("it is gone")
        return "done"

    with pytest.raises(StoreUnavailable, match="it is gone"):
        when_available(attempt, wait, stop, once=True)
    tried = 0
    assert when_available(attempt, wait, stop, once=False) == "done"
    stop.set()
    assert when_available(attempt, wait, stop, once=False) is None


def test_the_settings_of_a_lake_are_not_taken_for_checked_while_its_store_is_away(stored: StoredLake) -> None:
    stored.feed(changes(ScriptedTable(), 1), stored.opened())
    tables = stored.opened().positions.tables.values()
    config = LakeConfig((LakeTableConfig("*", partition=("town",)),))
    with stored.server.failing(slow_down), pytest.raises(StoreUnavailable):
        check_settings(config, stored.root, tables)
    with pytest.raises(BadTableSettings, match="town"):
        check_settings(config, stored.root, tables)


# Credentials


def write_credentials(path: Path, key: str) -> None:
    new = path.with_suffix(".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = s\naws_session_token = t\n")
    new.rename(path)


@pytest.mark.feature("L07")
def test_renewed_credentials_take_effect_while_tables_are_open(
    stored: StoredLake, server: FaultyStore, tmp_path: Path
) -> None:
    file = tmp_path / "credentials"
    write_credentials(file, "first")
    open_lake(stored.root, dataclasses.replace(server.config, store_credentials_file=str(file)), {}, QUICK)
    table, lake = ScriptedTable(), stored.opened()
    stored.feed(changes(table, 1), lake)
    write_credentials(file, "second")
    server.requests.clear()

    def refuse_the_first(request: StoreRequest, forward: Forward) -> Answer:
        return refusal(403, "InvalidAccessKeyId") if request.access_key == "first" else forward()

    with server.failing(refuse_the_first):
        stored.feed(changes(table, 2), lake)
        lake.positions.lake_id()
        stored.feed(changes(table, 3), lake)
    assert {request.access_key for request in server.requests} == {"second"}
    stored.check(table)


# Another clock


def with_clock(ahead: timedelta) -> Callable[[StoreRequest, Forward], Answer]:
    """Answer with the times of a store whose clock is ahead of ours."""

    def shift(_request: StoreRequest, forward: Forward) -> Answer:
        answer = forward()
        headers = [
            (name, format_datetime(parsedate_to_datetime(value) + ahead, usegmt=True))
            if name.lower() == "last-modified"
            else (name, value)
            for name, value in answer.headers
        ]

        def shifted(time: str) -> str:
            return (datetime.fromisoformat(time).astimezone(UTC) + ahead).strftime("%Y-%m-%dT%H:%M:%S.000Z")

        body = sub(
            "(?<=<LastModified>)([^<]+)(?=<)", lambda found: shifted(found[1]), answer.body.decode(errors="replace")
        )
        return Answer(answer.status, headers, body.encode() if b"<LastModified>" in answer.body else answer.body)

    return shift


@pytest.mark.feature("L07")
def test_no_file_is_kept_or_deleted_because_the_stores_clock_differs(stored: StoredLake) -> None:
    table, lake = ScriptedTable(), stored.opened()
    for key in range(2):
        stored.feed(changes(table, key), lake)
    uri = f"{stored.root}/{FOLDER}/replica"
    version = stored.delta(f"{FOLDER}/replica").version()
    stored.delta(f"{FOLDER}/replica").create_checkpoint()
    store, name = store_of(uri), f"{uri}/part-of-a-commit-that-is-being-made.parquet"
    with store.staged(name, b"content", 1) as publish:
        publish(name)
    for ahead in (timedelta(days=-2), timedelta(days=2)):
        open_lake(stored.root, stored.server.config, ENVIRONMENT, QUICK)  # with no time of the store
        with stored.server.failing(with_clock(ahead)):
            deleted = delete_unused_files(uri, 1, version, 100, Lock())
            assert (deleted, store.exists(name)) == (0, True), "it is not an hour old"
            kept = LogCleanup(stored.root, 600.0, get_log("test"))
            assert kept.run([(f"{FOLDER}/replica", version)]) == 0
    with stored.server.failing(with_clock(timedelta(days=2))):
        removed = LogCleanup(stored.root, 0.0, get_log("test"))
        assert removed.run([(f"{FOLDER}/replica", version)]) == version
    stored.feed(changes(table, 9))
    stored.check(table)
