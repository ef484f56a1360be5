"""A handler in a daemon, called by threads and by processes: order, kills, stops, poison and the metric."""

import json
import os
import signal
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from tests.integration.plugins.test_daemon_plugins import CANARY, MASK, files_with
from tests.support.plugins.daemons import use_config
from tests.support.plugins.handlers import HandledRow, begun_file, handled_rows
from tests.support.plugins.recording import place_of
from tests.support.processes.captures import Sidecar, initialised
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.processes.waiting import wait_until
from tests.support.processes.written_lines import complete_lines
from tests.support.servers.postgres import Cluster
from tests.unit.pool.test_worker_processes import is_alive
from tidemark.io.process.metrics import POOL_CPU
from tidemark.io.state.state import StateStore
from tidemark.model.errors import ExitCode

HANDLERS = "tests.support.plugins.handlers"
KINDS = ("threads", "processes")
QUICK = {
    "TIDEMARK_RETRY__FIRST_S": "0.01",
    "TIDEMARK_RETRY__MAX_S": "0.02",
    "TIDEMARK_DELIVER__GROUP_ROWS_MAX": "100",  # so that a stream of these tests is many batches
}
WORKERS = 2


@pytest.fixture
def sidecar(cluster: Cluster, database: str, tmp_path: Path) -> Iterator[Sidecar]:
    cluster.sql("CREATE TABLE person (id int PRIMARY KEY, email text, note text)", database)
    with initialised(cluster, database, tmp_path) as made:
        made.options.update(QUICK)
        yield made


def configure(sidecar: Sidecar, kind: str, *, order: str = "key", gated: bool = False, more: str = "") -> Path:
    """Let a handler append to a file, which is returned; `gated`: its calls wait for the file `gate` beside it."""
    root = sidecar.folder.root.parent
    file = root / "rows"
    gate = f"gate = '{root / 'gate'}'\n" if gated else ""
    use_config(
        f"[deliver]\nconsumer = '{HANDLERS}:FileHandler'\n[consumer]\nfile = '{file}'\n{gate}{more}"
        f"[pool]\nworkers = {WORKERS}\nkind = '{kind}'\norder = '{order}'\n{MASK}",
        sidecar,
    )
    return file


def insert(sidecar: Sidecar, first: int, last: int, note: str = "0") -> None:
    rows = f"SELECT n, '{CANARY}', '{note}' FROM generate_series({first}, {last}) n"
    sidecar.cluster.sql(f"INSERT INTO person {rows}", sidecar.database)


def workers_of(sidecar: Sidecar) -> list[int]:
    """Return the worker processes of a daemon: the children of its template."""
    assert sidecar.process is not None
    (template,) = psutil.Process(sidecar.process.pid).children()
    return [each.pid for each in template.children()]


def by_id(rows: Sequence[HandledRow]) -> dict[int, list[str | None]]:
    notes = defaultdict(list)
    for row in rows:
        notes[row.id].append(row.note)
    return notes


def cpu_s(sidecar: Sidecar, worker: int) -> float:
    return sidecar.metric(f'{POOL_CPU}{{capture="main",worker="{worker}"}}')


@pytest.mark.parametrize("kind", KINDS)
def test_workers_keep_the_order_of_each_key_and_a_graceful_stop_confirms_what_they_finished(
    sidecar: Sidecar, kind: str
) -> None:
    file = configure(sidecar, kind)
    sidecar.start()
    assert sidecar.process is not None
    daemon = sidecar.process.pid
    for note in range(1, 6):
        insert(sidecar, 1, 200, str(note)) if note == 1 else sidecar.cluster.sql(
            f"UPDATE person SET note = '{note}'", sidecar.database
        )
    sidecar.cluster.sql("TRUNCATE person", sidecar.database)
    insert(sidecar, 1, 1, "after")
    sidecar.wait_until(lambda: len(handled_rows(file)) == 1001, "the rows")
    rows = handled_rows(file)
    assert by_id(rows) == {number: ["1", "2", "3", "4", "5"] for number in range(2, 201)} | {
        1: ["1", "2", "3", "4", "5", "after"]
    }
    if kind == "processes":
        assert {row.pid for row in rows} == {*workers_of(sidecar)}
        assert len({row.pid for row in rows}) == WORKERS
    else:
        assert {row.pid for row in rows} == {daemon}
        assert len({row.thread for row in rows}) == WORKERS
    assert complete_lines(file.with_suffix(".events"))[-1] == f"Truncation {daemon}"
    assert min(cpu_s(sidecar, worker) for worker in range(1, WORKERS + 1)) > 0
    assert sidecar.stop() == ExitCode.SUCCESS
    assert len(complete_lines(file.with_suffix(".stopped"))) == (WORKERS + 1 if kind == "processes" else 1)
    sidecar.start()
    insert(sidecar, 2, 2, "next")
    sidecar.wait_until(lambda: len(handled_rows(file)) > 1001, "the next row")
    assert [(row.id, row.note) for row in handled_rows(file)[1001:]] == [(2, "next")]
    epochs = {row.epoch for row in handled_rows(file)}
    assert len(epochs) == 2
    assert files_with(CANARY, sidecar.folder, sidecar.log_path, file) == []
    shown = json.loads(succeeded(cdcctl("status", "--state", sidecar.folder.root, "--json")).out)
    assert f"{HANDLERS}:FileHandler" in json.dumps(shown)


def test_a_worker_process_that_is_killed_is_replaced_and_its_batch_is_handled_again(sidecar: Sidecar) -> None:
    file = configure(sidecar, "processes", gated=True)
    sidecar.start()
    insert(sidecar, 1, 40)
    sidecar.wait_until(lambda: len({*complete_lines(begun_file(file))}) == WORKERS, "a batch for each worker")
    killed, kept = workers_of(sidecar)
    os.kill(killed, signal.SIGKILL)
    sidecar.wait_until(lambda: len(complete_lines(begun_file(file))) > WORKERS, "the retry")
    (file.parent / "gate").touch()
    sidecar.wait_until(lambda: len(handled_rows(file)) >= 40, "the rows")
    assert sorted(row.id for row in handled_rows(file)) == [*range(1, 41)]
    assert killed not in {row.pid for row in handled_rows(file)}
    assert kept in {row.pid for row in handled_rows(file)}
    retried = sidecar.wait_for_event("the handler failed; it is called again with the same batch")
    assert retried["error"] == f"the worker process {killed} ended while it handled a batch"
    assert sidecar.stop() == ExitCode.SUCCESS


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_kill_of_the_daemon_nothing_is_lost_and_only_what_was_not_confirmed_comes_again(
    sidecar: Sidecar, kind: str
) -> None:
    file = configure(sidecar, kind, order="none")
    sidecar.start()
    for first in range(1, 3001, 500):
        insert(sidecar, first, first + 499)
    sidecar.wait_until(lambda: len(handled_rows(file)) > 1000, "a part of the stream")
    workers = workers_of(sidecar) if kind == "processes" else []
    sidecar.kill()
    wait_until(lambda: not any(map(is_alive, workers)), "the end of the workers")
    before = handled_rows(file)
    with StateStore.open(sidecar.folder, read_only=True) as store:
        delivered = store.marks().delivered
    assert delivered is not None
    confirmed = place_of(delivered.pointer.position)
    sidecar.start()
    sidecar.wait_until(lambda: {row.id for row in handled_rows(file)} == {*range(1, 3001)}, "all rows")
    insert(sidecar, 3001, 3001)
    sidecar.wait_until(lambda: 3001 in {row.id for row in handled_rows(file)}, "the last row")
    again = handled_rows(file)[len(before) :]
    assert all(row.place > confirmed for row in again), "a confirmed change came again"
    missing = {*range(1, 3002)} - {row.id for row in before}
    assert missing <= {row.id for row in again}


@pytest.mark.feature("P16")
@pytest.mark.parametrize("kind", KINDS)
def test_changes_that_a_handler_refuses_are_parked_and_handed_over_again_on_request(
    sidecar: Sidecar, kind: str
) -> None:
    poison = "[poison]\npolicy = 'park'\n"
    file = configure(sidecar, kind, more=f"refuses = [3, 7]\n{poison}")
    sidecar.options["TIDEMARK_DELIVER__RETRIES_MAX"] = "1"
    sidecar.start()
    insert(sidecar, 1, 10)
    sidecar.wait_until(lambda: len(handled_rows(file)) >= 8, "the others")

    def listed() -> dict[str, dict[str, object]]:
        done = succeeded(cdcctl("parked", "list", "--state", sidecar.folder.root, "--json"))
        found: dict[str, dict[str, object]] = json.loads(done.out)["parked"]
        return found

    insert(sidecar, 11, 11)
    insert(sidecar, 12, 12)
    sidecar.wait_until(lambda: len(listed()) == 2, "the parked changes")
    assert sorted(row.id for row in handled_rows(file)) == [1, 2, 4, 5, 6, 8, 9, 10, 11, 12]
    assert {str(each["reason"]) for each in listed().values()} == {"KeyError"}
    assert sidecar.stop() == ExitCode.SUCCESS
    configure(sidecar, kind, more=poison)
    sidecar.start()
    succeeded(cdcctl("parked", "retry", "--state", sidecar.folder.root, "--all"))
    sidecar.wait_until(lambda: not listed(), "the retry")
    assert sorted(row.id for row in handled_rows(file)) == [*range(1, 13)]
    assert files_with(CANARY, sidecar.folder, sidecar.log_path, file) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_that_fails_ends_the_daemon_without_a_value_and_confirms_nothing_of_it(
    sidecar: Sidecar, kind: str
) -> None:
    file = configure(sidecar, kind, more="refuses = [3]\n")
    sidecar.options["TIDEMARK_DELIVER__RETRIES_MAX"] = "1"
    sidecar.start()
    insert(sidecar, 3, 3)
    raised = "KeyError raised in a worker process" if kind == "processes" else "the handler FileHandler raised KeyError"
    sidecar.ended(ExitCode.CONSUMER_FAILED, raised)
    assert CANARY not in sidecar.log_path.read_text()
    configure(sidecar, kind)
    sidecar.start()
    sidecar.wait_until(lambda: [row.id for row in handled_rows(file)] == [3], "the row")


def test_a_handler_that_does_not_return_ends_the_daemon_and_its_workers(sidecar: Sidecar) -> None:
    configure(sidecar, "processes", gated=True)
    sidecar.options |= {"TIDEMARK_DELIVER__HANG_S": "0.5", "TIDEMARK_DELIVER__STOP_S": "0.2"}
    sidecar.start()
    workers = workers_of(sidecar)
    insert(sidecar, 1, 1)
    sidecar.ended(ExitCode.CONSUMER_FAILED, "the handler FileHandler has been in a call for over 0.5 s")
    wait_until(lambda: not any(map(is_alive, workers)), "the end of the workers")


def test_without_its_template_the_daemon_ends_and_the_next_one_continues(sidecar: Sidecar) -> None:
    file = configure(sidecar, "processes")
    sidecar.start()
    assert sidecar.process is not None
    (template,) = psutil.Process(sidecar.process.pid).children()
    template.kill()
    insert(sidecar, 1, 1)
    sidecar.ended(ExitCode.CONSUMER_FAILED, "no worker process can be forked: the template of the workers has ended")
    sidecar.start()
    sidecar.wait_until(lambda: [row.id for row in handled_rows(file)] == [1], "the row")


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_gets_records_of_a_serializer(sidecar: Sidecar, kind: str) -> None:
    file = sidecar.folder.root.parent / "records"
    use_config(
        f"[deliver]\nconsumer = '{HANDLERS}:RecordsHandler'\nserializer = 'tidemark:FlatJson'\n"
        f"[consumer]\nfile = '{file}'\n[pool]\nkind = '{kind}'\n{MASK}",
        sidecar,
    )
    sidecar.start()
    insert(sidecar, 1, 2)
    sidecar.wait_until(lambda: len(complete_lines(file)) == 2, "the records")
    assert [json.loads(line)["email"] for line in complete_lines(file)] == ["masked", "masked"]


def test_an_error_of_a_transform_is_retried_in_the_pool_and_ends_the_daemon_without_a_value(sidecar: Sidecar) -> None:
    """NB: before another consumer it is final at once."""
    configure(sidecar, "threads")
    program = Path(sidecar.program[-1])
    leaking = "[[transforms]]\nuse = 'tidemark:OnRow'\nfunction = 'tests.support.plugins.bad_plugins:leaking'\n"
    program.write_text(program.read_text() + leaking)
    sidecar.options["TIDEMARK_DELIVER__RETRIES_MAX"] = "1"
    sidecar.start()
    insert(sidecar, 1, 1, note="a-note-of-the-row")
    raised = "OnRow(leaking) raised ValueError on rows of public.person"
    assert sidecar.wait_for_event("the handler failed; it is called again with the same batch")["error"] == raised
    sidecar.ended(ExitCode.CONSUMER_FAILED, raised)
    assert files_with("a-note-of-the-row", sidecar.folder, sidecar.log_path) == []
