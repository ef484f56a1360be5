"""No test can stop a run: one that hangs, in any part, ends with its name and the traceback of its threads."""

import os
import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).parents[2]
CONFTEST = """
from tests.support.processes.hang_limit import HangLimit


def pytest_configure(config):
    config.pluginmanager.register(HangLimit(after_s=2))
"""
TESTS = """
import signal

import pytest
from tests.support.processes.waiting import let_pass

LONG_S = 600


@pytest.fixture
def hanging_teardown():
    yield
    signal.pause()


def test_that_no_signal_handler_interrupts():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    signal.pause()


def test_that_fails_before_its_teardown_hangs(hanging_teardown):
    assert not hanging_teardown
    raise AssertionError("its own failure")


@pytest.mark.timeout(LONG_S)
def test_that_may_take_longer():
    let_pass(2.5, "more than the limit of the other tests")


def test_that_is_left():
    pass
"""


def test_a_test_that_hangs_ends_with_its_name_and_the_others_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_hangs.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", "-o", "timeout=2", "-p", "no:cacheprovider", "."]
    run = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TREE), "PYTEST_ADDOPTS": ""},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    hung = ("test_that_no_signal_handler_interrupts", "test_that_fails_before_its_teardown_hangs")
    for name in hung:
        assert f"crashed while running 'test_hangs.py::{name}'" in run.stdout, run.stdout
    assert "its own failure" in run.stdout
    assert "2 passed" in run.stdout
    for function in (hung[0], "hanging_teardown"):
        assert f"in {function}" in run.stderr + run.stdout
