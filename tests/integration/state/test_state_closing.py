"""A state folder is closed while other threads of the process write: no thread waits for ever, and nothing is lost."""

import threading
from pathlib import Path

import pytest

from tidemark.io.state.environment import Environment
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import StateError

KEY, VALUE = b"key", b"value"
SOON_S = 0.2
DEADLINE_S = 30.0


class Writer:
    """Writes once, in a thread, on request; keeps its error, with all objects that its frames refer to."""

    def __init__(self, environment: Environment) -> None:
        self.error: BaseException | None = None
        self.is_inside = threading.Event()
        self.may_go_on = threading.Event()
        self._environment = environment
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            with self._environment.write() as transaction:
                self.is_inside.set()
                self.may_go_on.wait(DEADLINE_S)
                transaction.put(KEY, VALUE, db=self._environment.database("state"))
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.error = error


def opened(folder: StateFolder) -> Environment:
    folder.make()
    return Environment.open(folder, map_bytes=1 << 30, create=True)


def closing(environment: Environment) -> threading.Thread:
    thread = threading.Thread(target=environment.close, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    return StateFolder(tmp_path / "state")


def test_a_write_that_is_in_progress_is_completed(folder: StateFolder) -> None:
    environment = opened(folder)
    writer = Writer(environment)
    assert writer.is_inside.wait(DEADLINE_S)
    close = closing(environment)
    close.join(SOON_S)
    writer.may_go_on.set()
    writer.thread.join(DEADLINE_S)
    close.join(DEADLINE_S)
    assert not close.is_alive()
    assert writer.error is None
    again = opened(folder)
    with again.read() as transaction:
        assert transaction.get(KEY, db=again.database("state")) == VALUE
    again.close()


def test_a_writer_that_hangs_blocks_no_process(folder: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.io.state.environment.SHUT_S", SOON_S)
    environment = opened(folder)
    writer = Writer(environment)
    assert writer.is_inside.wait(DEADLINE_S)
    close = closing(environment)
    close.join(DEADLINE_S)
    assert not close.is_alive()
    writer.may_go_on.set()
    writer.thread.join(DEADLINE_S)


def test_nothing_is_written_after_the_close(folder: StateFolder) -> None:
    environment = opened(folder)
    environment.close()
    with pytest.raises(StateError, match="is closed"), environment.write():
        pass


def test_a_map_larger_than_the_address_space_is_refused_and_leaves_nothing(folder: StateFolder) -> None:
    folder.make()
    with pytest.raises(StateError, match="Cannot allocate memory") as refused:
        Environment.open(folder, map_bytes=1 << 48, create=True)
    assert "outbox.bytes_max" in refused.value.hint
    opened(folder).close()
