"""A pipeline that cannot start or write: each cause with its exit code, one event, and no Python traceback."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.support.lakes.lakes import IDENTITY, feed_by_hand, replica_rows
from tests.support.lakes.scripted_table import DATABASE
from tests.support.processes.cdcctl import Done, cdcctl, environment
from tests.support.workloads.feeder import RandomTables, feed, make_state
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ExitCode
from tidemark.pipeline.driver.arguments import READER
from tidemark.pipeline.lake.folders import folder_name
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.wire.state.readers import ReaderKind

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("forked")]
PIPELINE = (sys.executable, "-m", "tidemark.pipeline")  # what `cdcctl spark run` executes
PATTERNS = ("public.table*", "public.nothing")
BROKEN = """
import sys
from tidemark.pipeline.driver import program

def break_down(*_: object) -> None:
    raise ZeroDivisionError("a row's value")

program.arm_from_environment = break_down
sys.exit(program.main())
"""

WITHOUT_DELTALAKE = """
import runpy
import sys

sys.modules["deltalake"] = None
runpy.run_module("tidemark.pipeline", run_name="__main__")
"""


def run(state: Path, lake: Path, *more: str, **variables: str) -> Done:
    """Run the pipeline to its end by `cdcctl spark run`."""
    return cdcctl("spark", "run", *arguments_of(state, lake, more), **variables)


def refused_run(state: Path, lake: Path, *more: str) -> Done:
    """Run the pipeline itself to its end."""
    return cdcctl(*arguments_of(state, lake, more), program=PIPELINE)


def arguments_of(state: Path, lake: Path, more: Sequence[str]) -> list[str | Path]:
    local = () if "--master" in more else ("--master", "local[1]")
    return ["--state", state, "--lake", lake, "--once", *local, *more]


def ended(done: Done, code: ExitCode, *said: str) -> None:
    """Check that it ended with `code` and one event that has these words and a hint."""
    assert done.code == code, done.err
    event = json.loads([line for line in done.err.splitlines() if line.startswith("{")][-1])
    assert (event["event"], event["exit_code"]) == ("pipeline ends", code), event
    for words in said:
        assert words in event["error"], event
    assert event["hint"]
    assert "Traceback" not in done.err


@pytest.mark.feature("I40")
def test_a_pipeline_that_cannot_start_reports_the_reason(tmp_path: Path) -> None:
    state, file = tmp_path / "state", tmp_path / "file"
    make_state(state)
    file.touch()
    ended(run(tmp_path / "none", tmp_path / "lake"), ExitCode.STATE, "no state in")
    ended(refused_run(state, tmp_path / "lake", "--reader", "a b"), ExitCode.CONFIG, "not a reader's name")
    with OutboxReader.open(StateFolder(state)) as outbox:
        outbox.register("totals", is_required=False, kind=ReaderKind.QUERY)
    of_query = refused_run(state, tmp_path / "lake", "--reader", "totals")
    ended(of_query, ExitCode.CONFIG, "reader 'totals' belongs to a streaming query")
    for option, value in (("--master", "moon"), ("--master", "yarn"), ("--driver-memory", "1gb")):
        wrong = run(state, tmp_path / "lake", option, value)
        ended(wrong, ExitCode.CONFIG, f"{option} {value} ")
        assert len(wrong.err.splitlines()) == 1, "no trace of a JVM"
    for lake in (file, file / "lake"):
        ended(refused_run(state, lake), ExitCode.CONFIG, f"the lake {lake} cannot be a folder: {file} is a file")
    with OutboxReader.open(StateFolder(state)) as outbox:
        assert outbox.registered(READER) is None, "a pipeline that never ran must hold no values of the outbox"
    for option, value in (("--batch-bytes", "0"), ("--metrics-port", "65536"), ("--driver", "x")):
        assert refused_run(state, tmp_path / "lake", option, value).code == ExitCode.CONFIG


def test_a_pipeline_with_the_lake_of_another_capture_leaves_no_reader(tmp_path: Path) -> None:
    state, lake = tmp_path / "state", tmp_path / "lake"
    make_state(state)
    Positions(str(lake), replace(IDENTITY, capture="other")).lake_id()
    ended(refused_run(state, lake), ExitCode.CONFIG, "contains the tables of capture 'other'")
    with OutboxReader.open(StateFolder(state)) as outbox:
        assert outbox.registered(READER) is None


@pytest.mark.feature("I40")
def test_an_internal_error_ends_the_pipeline_with_a_separate_exit_code(tmp_path: Path) -> None:
    state, lake = tmp_path / "state", tmp_path / "lake"
    make_state(state)
    ended(run(state, lake, TIDEMARK_FAILPOINT="no such point"), ExitCode.CONFIG, "no failpoint 'no such point' here")
    arguments = [sys.executable, "-c", BROKEN, "--state", str(state), "--lake", str(lake), "--master", "local[1]"]
    done = subprocess.run(arguments, capture_output=True, check=False, env=environment())
    ended(Done(done.returncode, done.stdout, done.stderr.decode()), ExitCode.INTERNAL, "internal error")
    assert b"a row's value" not in done.stdout + done.stderr


@pytest.mark.feature("I40")
def test_a_pipeline_without_the_packages_of_its_extra_names_the_extra(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", WITHOUT_DELTALAKE, "--state", str(tmp_path), "--lake", str(tmp_path)]
    done = subprocess.run(arguments, capture_output=True, check=False, env=environment())
    ended(Done(done.returncode, done.stdout, done.stderr.decode()), ExitCode.CONFIG, "deltalake is not installed")
    assert b'pip install \\"tidemark[spark]\\"' in done.stderr


@pytest.mark.feature("L15")
def test_a_wrong_setting_of_the_lake_is_refused_by_its_key(tmp_path: Path) -> None:
    state, lake, config = tmp_path / "state", tmp_path / "lake", tmp_path / "tidemark.toml"
    make_state(state)
    config.write_text("[[lake.tables]]\npattern = '*.*'\nretention = 1\n")
    ended(
        run(state, lake, "--config", str(config)),
        ExitCode.CONFIG,
        "lake.tables: Object contains unknown field `retention`",
    )
    (state / config.name).write_text("[[lake.tables]]\npattern = '*.*'\nlog_keep_days = -1\n")
    ended(run(state, lake), ExitCode.CONFIG, "lake.tables: Expected `int` >= 0 - at `$[0].log_keep_days`")


@pytest.mark.feature("L15")
def test_a_setting_that_does_not_fit_a_table_of_the_lake_is_refused_at_the_start(tmp_path: Path) -> None:
    state, lake = tmp_path / "state", tmp_path / "lake"
    make_state(state)
    feed(state, RandomTables(1).groups(2))
    feed_by_hand(StateFolder(state), lake, "spark")
    (state / "tidemark.toml").write_text("[[lake.tables]]\npattern = 'public.*'\ncluster = ['day']\n")
    ended(run(state, lake), ExitCode.CONFIG, "public.table", "cluster names the column day, which it does not have")


@dataclass(frozen=True)
class FinishedRun:
    """A run to the end without a umask, over a lake with deferred replicas and a pattern without a table."""

    state: Path
    lake: Path
    tables: RandomTables
    done: Done


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    root, tables = tmp_path_factory.mktemp("finished"), RandomTables(1)
    state, lake = root / "state", root / "lake"
    make_state(state)
    feed(state, tables.groups(4))
    feed_by_hand(StateFolder(state), lake, "spark")
    feed(state, tables.groups(4))
    text = "".join(f"[[lake.tables]]\npattern = '{pattern}'\nmerge_interval_s = 86400\n" for pattern in PATTERNS)
    (state / "tidemark.toml").write_text(text)
    before = os.umask(0)
    try:
        done = run(state, lake, "--batch-bytes", "1")
    finally:
        os.umask(before)
    assert done.code == ExitCode.SUCCESS, done.err
    return FinishedRun(state, lake, tables, done)


def test_the_pipeline_leaves_nothing_in_the_state_folder_that_others_may_read(finished: FinishedRun) -> None:
    state = finished.state
    written = [path for path in state.rglob("*") if path.name != "tidemark.toml"]  # the user's own file
    assert {path.name for path in written if path.is_file()} >= {"pipeline-spark.json", "pipeline-spark.lock", "0"}
    assert [str(path) for path in [state, *written] if path.stat().st_mode & 0o077] == []


@pytest.mark.feature("L15")
def test_a_run_to_the_end_reports_patterns_without_a_table_and_merges_deferred_replicas(finished: FinishedRun) -> None:
    lines = [json.loads(line) for line in finished.done.err.splitlines() if line.startswith("{")]
    said = [line["pattern"] for line in lines if "of lake.tables applies to no table" in line["event"]]
    assert said == [*PATTERNS[1:]]
    for table in finished.tables.tables:
        assert replica_rows(finished.lake, f"{DATABASE}/public/{folder_name(table.name)}") == table.expected()
    with StateStore.open(StateFolder(finished.state)) as store:
        marks = store.marks()
    assert marks.readers["spark"].applied == marks.ledger.head, "the outbox keeps nothing for them"
