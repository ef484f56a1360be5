"""Changes that a plug-in cannot handle: found, skipped or parked once, also through kills, and handed over again."""

import json
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.integration.plugins.test_daemon_plugins import CANARY, MASK, files_with
from tests.support.plugins.daemons import file_rows, use_config
from tests.support.processes.captures import ENDED_S, Sidecar, initialised
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.servers.postgres import Cluster
from tidemark.io.host import failpoints
from tidemark.io.process.metrics import PARKED, POISON
from tidemark.model.errors import ExitCode
from tidemark.runtime.plugins.poison_handling import PoisonPoint

PICKY = "tests.support.plugins.recording:PickyConsumer"
QUICK = {"TIDEMARK_RETRY__FIRST_S": "0.01", "TIDEMARK_RETRY__MAX_S": "0.02", "TIDEMARK_DELIVER__RETRIES_MAX": "1"}


@pytest.fixture
def sidecar(cluster: Cluster, database: str, tmp_path: Path) -> Iterator[Sidecar]:
    cluster.sql("CREATE TABLE person (id int PRIMARY KEY, email text, note text)", database)
    with initialised(cluster, database, tmp_path) as made:
        made.options.update(QUICK)
        yield made


def configure(sidecar: Sidecar, policy: str, refuses: Sequence[int], more: str = "") -> Path:
    file = sidecar.folder.root.parent / "changes.db"
    use_config(
        f"[deliver]\nconsumer = '{PICKY}'\n[consumer]\nfile = '{file}'\nrefuses = {[*refuses]}\n"
        f"[poison]\npolicy = '{policy}'\n{more}{MASK}",
        sidecar,
    )
    return file


def ids(file: Path) -> list[int]:
    return [json.loads(row.after)["id"] for row in file_rows(file, "public.person") if row.after is not None]


def listed(sidecar: Sidecar) -> dict[str, dict[str, object]]:
    done = succeeded(cdcctl("parked", "list", "--state", sidecar.folder.root, "--json"))
    found: dict[str, dict[str, object]] = json.loads(done.out)["parked"]
    return found


def skipped_count(sidecar: Sidecar) -> int:
    done = succeeded(cdcctl("parked", "list", "--state", sidecar.folder.root, "--json"))
    count: int = json.loads(done.out)["skipped"]["count"]
    return count


def wait_for_kill(sidecar: Sidecar) -> None:
    """Wait until the failpoint has ended the process."""
    assert sidecar.process is not None
    assert sidecar.process.wait(timeout=ENDED_S) == -signal.SIGKILL, sidecar.reported()


def insert(sidecar: Sidecar, first: int, last: int) -> None:
    rows = f"SELECT n, '{CANARY}', 'n' FROM generate_series({first}, {last}) n"
    sidecar.cluster.sql(f"INSERT INTO person {rows}", sidecar.database)


@pytest.mark.feature("P16")
@pytest.mark.feature("N15")
def test_parked_changes_are_kept_through_kills_without_a_masked_value_and_handed_over_again_once(
    sidecar: Sidecar,
) -> None:
    file = configure(sidecar, "park", [3, 7])
    for point in (PoisonPoint.FOUND, PoisonPoint.RECORDED):
        sidecar.options[failpoints.VARIABLE] = f"{point.value}:2"
        sidecar.start()
        if point is PoisonPoint.FOUND:
            insert(sidecar, 1, 10)
        wait_for_kill(sidecar)
    del sidecar.options[failpoints.VARIABLE]
    sidecar.start()
    insert(sidecar, 11, 12)
    sidecar.wait_until(lambda: 12 in ids(file), "the rows behind the poison")
    assert ids(file) == [1, 2, 4, 5, 6, 8, 9, 10, 11, 12]
    parked = listed(sidecar)
    assert [(each["table"], each["op"], each["reason"]) for each in parked.values()] == [
        ("public.person", "i", "KeyError")
    ] * 2
    assert sidecar.metric(f'{PARKED}{{capture="main"}}') == 2
    assert sidecar.metric(f'{POISON}{{capture="main",kind="park"}}') >= 1
    status = json.loads(succeeded(cdcctl("status", "--state", sidecar.folder.root, "--json")).out)
    assert (status["parked"], status["skipped"]) == (2, 0)
    assert files_with(CANARY, sidecar.folder, sidecar.log_path, file) == []

    first, second = parked
    succeeded(cdcctl("parked", "retry", "--state", sidecar.folder.root, first))
    sidecar.wait_for_event("a parked change failed again")
    assert not listed(sidecar)[first]["retry_requested"]
    assert sidecar.stop() == ExitCode.SUCCESS
    configure(sidecar, "park", [])
    sidecar.options[failpoints.VARIABLE] = PoisonPoint.RETRIED.value
    succeeded(cdcctl("parked", "retry", "--state", sidecar.folder.root, "--all"))
    sidecar.start(wait=False)
    wait_for_kill(sidecar)
    assert [*listed(sidecar)] == [first, second], "they stay until that is durable"
    del sidecar.options[failpoints.VARIABLE]
    sidecar.start()
    sidecar.wait_until(lambda: not listed(sidecar), "the retry")
    assert sorted(ids(file)) == [*range(1, 13)]
    epochs = [row.epoch for row in file_rows(file, "public.person")]
    assert epochs == sorted(epochs), "a retried change has the epoch of the process that hands it over"
    assert files_with(CANARY, sidecar.folder, sidecar.log_path, file) == []


@pytest.mark.feature("P16")
def test_skipped_changes_leave_a_durable_record_and_a_failing_consumer_is_not_taken_for_poison(
    sidecar: Sidecar,
) -> None:
    file = configure(sidecar, "skip", [2, *range(100, 200)], "in_a_row_max = 3\n")
    sidecar.start()
    insert(sidecar, 1, 4)
    sidecar.wait_until(lambda: ids(file) == [1, 3, 4], "the others")
    insert(sidecar, 100, 104)
    sidecar.ended(ExitCode.CONSUMER_FAILED, "4 changes in a row could not be handled, the last one of public.person")
    shown = json.loads(succeeded(cdcctl("parked", "list", "--state", sidecar.folder.root, "--json")).out)
    assert (shown["parked"], shown["skipped"]["count"]) == ({}, 1), "those of the run are good or bad: unknown"
    assert "i of public.person in" in shown["skipped"]["latest"][0]
    assert shown["skipped"]["latest"][0].endswith(": KeyError")
    sidecar.options["TIDEMARK_POISON__IN_A_ROW_MAX"] = "10"
    configure(sidecar, "skip", [2, *range(100, 200)])
    sidecar.start()
    insert(sidecar, 5, 5)
    sidecar.wait_until(lambda: ids(file) == [1, 3, 4, 5], "the others")
    # The consumer has returned from a row when its proof is recorded, one transaction for each skipped change.
    sidecar.wait_until(lambda: skipped_count(sidecar) == 6, "the records of what came again after the end")


def test_a_builtin_consumer_refuses_a_policy_and_unknown_numbers_are_refused(sidecar: Sidecar) -> None:
    use_config("[poison]\npolicy = 'park'\n", sidecar)
    sidecar.refuses(ExitCode.CONFIG, "poison.policy is park: the consumer outbox handles every change")
    refused = cdcctl("parked", "drop", "--yes", "--state", sidecar.folder.root, "5")
    assert (refused.code, "no parked change has the number 5" in refused.err) == (ExitCode.CONFIG, True)
    neither = cdcctl("parked", "retry", "--state", sidecar.folder.root)
    assert (neither.code, "or --all" in neither.err) == (ExitCode.CONFIG, True)
