"""Which pipelines of a lake in an object store run at present, and a command that must be alone."""

from threading import Event

import pytest

from tests.integration.stores.test_store_faults import cut_off
from tests.support.lakes.lakes import IDENTITY
from tests.support.lakes.scripted_table import ScriptedTable
from tests.support.lakes.stored_lake import StoredLake, changes
from tests.support.processes.waiting import wait_until
from tests.support.servers.object_store import Answer, ConnectionCut, Forward, StoreRequest
from tidemark.pipeline.lake.lake_lock import LakeInUse
from tidemark.pipeline.landing import lake_epoch, running_pipelines
from tidemark.pipeline.landing.lake_epoch import LakeHold, LakeTaken, hold_lake
from tidemark.pipeline.landing.running_pipelines import SeenPipeline
from tidemark.pipeline.storage.store_errors import StoreUnavailable
from tidemark.pipeline.storage.stores import store_of
from tidemark.wire.capture_facts import CaptureFacts

pytestmark = pytest.mark.feature("L07")
LONG_S = 1e6


def holding(stored: StoredLake, host: str, *, alone: bool = False, keys: tuple[str, ...] = ()) -> LakeHold:
    facts = CaptureFacts(host, "/state", keys, awaits_promotion=False)
    return stored.running.enter_context(hold_lake(stored.root, IDENTITY, facts, "spark", alone=alone))


@pytest.fixture
def slow_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pipeline renews its object, or counts as killed, because a test takes long."""
    monkeypatch.setattr(running_pipelines, "RENEW_S", LONG_S)
    monkeypatch.setattr(running_pipelines, "ALIVE_S", LONG_S)


@pytest.mark.usefixtures("slow_host")
def test_a_command_that_must_be_alone_is_refused_while_a_pipeline_of_another_host_is_running(
    stored: StoredLake,
) -> None:
    stored.feed(changes(ScriptedTable(), 1))
    pipeline = holding(stored, "b")
    refused = r"is written by the pipeline 'spark' .*state /state on b, process \d+ on .*, seen at \d{4}-.* UTC"
    with pytest.raises(LakeInUse, match=refused) as raised:
        holding(stored, "c", alone=True)
    assert "stop that pipeline first" in raised.value.hint
    pipeline.check()  # it was not ended
    with pipeline:
        pass
    with holding(stored, "c", alone=True) as command:
        command.check()


@pytest.mark.usefixtures("slow_host")
def test_a_command_that_must_be_alone_ends_if_a_pipeline_of_another_host_starts(stored: StoredLake) -> None:
    command = holding(stored, "c", alone=True, keys=("key",))
    command.check()
    with holding(stored, "b", keys=("key",)) as pipeline:
        for _ in range(2):
            with pytest.raises(LakeInUse, match=r"is written by the pipeline 'spark' .*state /state on b,"):
                command.check()
        pipeline.check()
    with pytest.raises(LakeInUse, match=r"on b,"):
        command.check()  # the pipeline may have committed


@pytest.mark.usefixtures("slow_host")
def test_a_command_that_must_be_alone_detects_a_pipeline_that_was_starting(
    stored: StoredLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting, started = ["b"], list[LakeHold]()
    running = running_pipelines.running_pipelines

    def list_before_start(root: str) -> list[SeenPipeline]:
        found = running(root)
        if starting:
            started.append(holding(stored, starting.pop(), keys=("key",)))
        return found

    monkeypatch.setattr(lake_epoch, "running_pipelines", list_before_start)
    with pytest.raises(LakeInUse, match=r"is written by the pipeline 'spark' .*state /state on b,"):
        holding(stored, "c", alone=True, keys=("key",))
    (pipeline,) = started
    pipeline.check()  # it was not ended
    assert pipeline.beside is not None
    names = [file.name for file in store_of(stored.root).files(f"{stored.root}/_pipeline")]
    assert sum(name.startswith("alive-") for name in names) == 1  # that of the command was deleted


@pytest.mark.usefixtures("slow_host")
def test_a_killed_pipeline_counts_as_running_for_a_while_and_its_successor_does_not_wait(
    stored: StoredLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = holding(stored, "b")
    with holding(stored, "b", alone=True) as successor:  # it has the lock of the same reader and state
        assert not successor.others
    with holding(stored, "c") as other:
        assert [one.holder.state_host for one in other.others] == ["b"]
    monkeypatch.setattr(running_pipelines, "ALIVE_S", -60.0)  # as if it was seen before that
    with holding(stored, "c", alone=True) as command:
        assert not command.others
    with pytest.raises(LakeTaken):
        killed.check()


def alive_writes(stored: StoredLake) -> int:
    return sum(one.method == "PUT" and "/_pipeline/alive-" in one.key for one in stored.server.requests)


def test_a_running_pipeline_is_seen_however_long_its_batch_takes(
    stored: StoredLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes no check in a batch; a store that does not answer once changes nothing."""
    monkeypatch.setattr(running_pipelines, "RENEW_S", 0.01)
    monkeypatch.setattr(running_pipelines, "RENEW_AGAIN_S", 0.01)
    stored.feed(changes(ScriptedTable(), 1))
    with holding(stored, "b"):
        wait_until(lambda: alive_writes(stored) > 2, "the object to be renewed")
        with stored.server.failing(cut_off):
            failed = alive_writes(stored)
            wait_until(lambda: alive_writes(stored) > failed, "a request without an answer")
        renewed = alive_writes(stored)
        wait_until(lambda: alive_writes(stored) > renewed + 1, "the object to be renewed again")
        with pytest.raises(LakeInUse, match=r"on b,"):
            holding(stored, "c", alone=True)
    with holding(stored, "c", alone=True) as command:
        assert not command.others


def test_a_pipeline_ends_without_another_request_while_a_renewal_has_no_answer(
    stored: StoredLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_pipelines, "RENEW_S", 0.01)
    monkeypatch.setattr(running_pipelines, "END_S", 0.01)
    stored.feed(changes(ScriptedTable(), 1))
    asked, ended = list[StoreRequest](), Event()

    def unanswered(request: StoreRequest, _forward: Forward) -> Answer:
        asked.append(request)
        ended.wait()
        raise ConnectionCut

    pipeline = holding(stored, "b")
    with stored.server.failing(unanswered):
        wait_until(lambda: bool(asked), "a renewal without an answer")
        with pipeline:
            pass
        found = [request.method for request in asked]
        ended.set()
    assert found == ["PUT"]  # a request to delete the object would also wait for its limit


@pytest.mark.usefixtures("slow_host")
def test_a_check_renews_nothing(stored: StoredLake) -> None:
    with holding(stored, "b") as pipeline:
        stored.server.requests.clear()
        pipeline.check()
        assert [one.method for one in stored.server.requests] == ["HEAD"]


def test_a_pipeline_that_could_not_begin_is_not_seen(stored: StoredLake, monkeypatch: pytest.MonkeyPatch) -> None:
    stored.feed(changes(ScriptedTable(), 1))

    def unavailable(_root: str) -> list[SeenPipeline]:
        raise StoreUnavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(lake_epoch, "running_pipelines", unavailable)
        with pytest.raises(StoreUnavailable):
            holding(stored, "b")
    with holding(stored, "c", alone=True) as command:
        assert not command.others
