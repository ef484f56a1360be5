"""Commands that remove something: what they name must exist, and the operator confirms it."""

import subprocess
from pathlib import Path

import pytest

from tests.support.processes.cdcctl import cdcctl, command, environment, refused, reported
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import SystemIdentifier
from tidemark.model.position import Sequence
from tidemark.wire.state.readers import Reader
from tidemark.wire.state.values import Identity

QUESTION = "Values that this reader has not read may then be trimmed. Drop it? [y/N]: "


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = StateFolder(tmp_path / "state")
    identity = Identity("main", SystemIdentifier(1), "00" * 16, 15, 16 << 20, 1 << 24)
    with StateStore.create(folder, identity) as store, store.transaction(None) as transaction:
        transaction.put_reader("lake", Reader(Sequence(0), Sequence(0), 0))
    return folder.root


def readers(state: Path) -> set[str]:
    with StateStore.open(StateFolder(state)) as store:
        return {*store.view().readers}


@pytest.mark.feature("I40")
@pytest.mark.parametrize("options", [(), ("--yes",)])
@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("reader drop nobody", "reader 'nobody' is not registered"),
        ("reader resume nobody", "reader 'nobody' is not registered"),
        ("parked drop 7", "no parked change has the number 7"),
        ("parked retry 7", "no parked change has the number 7"),
    ],
)
def test_what_does_not_exist_is_refused_with_one_code_and_before_any_question(
    asked: str, message: str, options: tuple[str, ...], state: Path
) -> None:
    if "drop" not in asked and options:
        return
    done = cdcctl(*asked.split(), *options, "--state", state)
    refused(done, ExitCode.CONFIG, message)
    assert len(done.err.splitlines()) == 2


@pytest.mark.parametrize("asked", ["reader drop lake", "parked drop 1", "parked drop --all"])
def test_a_missing_state_is_reported_before_any_question(asked: str, tmp_path: Path) -> None:
    done = cdcctl(*asked.split(), "--state", tmp_path / "none")
    refused(done, ExitCode.STATE, str(tmp_path / "none"))
    assert "[y/N]" not in done.err


@pytest.mark.parametrize(
    ("answer", "message"),
    [(b"", "not confirmed: the input has ended"), (b"n\n", "not confirmed"), (b"\xff\n", "not confirmed")],
)
def test_without_the_answer_y_nothing_is_removed_and_a_line_says_so(answer: bytes, message: str, state: Path) -> None:
    arguments = command("reader", "drop", "lake", "--state", state)
    done = subprocess.run(arguments, check=False, input=answer, capture_output=True, timeout=60, env=environment())
    assert (done.returncode, done.stdout) == (ExitCode.CONFIG, b"")
    said = done.stderr.decode()
    assert said.startswith(QUESTION)
    assert reported(said.removeprefix(QUESTION))[0].endswith(f"cdcctl: {message}")
    assert readers(state) == {"lake"}


def test_after_the_answer_y_the_reader_is_removed(state: Path) -> None:
    arguments = command("reader", "drop", "lake", "--state", state)
    done = subprocess.run(arguments, check=True, input=b"y\n", capture_output=True, timeout=60, env=environment())
    assert done.stdout == b"reader lake dropped\n"
    assert readers(state) == set()
