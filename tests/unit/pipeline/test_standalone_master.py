"""The report of a standalone master that does not answer."""

import socket
import threading
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from tidemark.io.host.log_output import configure_logs, get_log
from tidemark.pipeline.driver.standalone_master import MasterUnreachable, wait_for_master


@pytest.fixture(autouse=True)
def every_level() -> Iterator[None]:
    """Enable events of all levels, which an earlier test may have disabled."""
    before = structlog.get_config()
    configure_logs("json", "debug")
    yield
    structlog.configure(**before)


def test_a_local_master_requires_no_wait() -> None:
    assert wait_for_master("local[2]", threading.Event(), get_log("test"), once=True)


def test_an_unreachable_master_is_reported_and_awaited_except_with_once() -> None:
    stop = threading.Event()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{listener.getsockname()[1]}"  # bound, but not listening
        with pytest.raises(MasterUnreachable, match=master):
            wait_for_master(master, stop, get_log("test"), once=True)
        with capture_logs() as lines:
            waiting = threading.Thread(
                target=wait_for_master, args=(master, stop, get_log("test")), kwargs={"once": False}
            )
            waiting.start()
            while not lines:
                assert waiting.is_alive()
            listener.listen()
            waiting.join()
        assert [line["event"] for line in lines] == ["spark master does not answer"]
        assert wait_for_master(f"spark://[::1]:1,{master.removeprefix('spark://')}", stop, get_log("test"), once=True)
