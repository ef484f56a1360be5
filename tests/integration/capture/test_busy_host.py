"""A host whose CPUs are all in use: the counter of the kernel, and a sidecar that delivers less often then."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.processes.captures import running
from tests.support.servers.postgres import Cluster
from tidemark.io.host.cpu_pressure import PRESSURE, cpu_waited_s
from tidemark.io.process.metrics import HOST_BUSY

needs_pressure = pytest.mark.skipif(not PRESSURE.exists(), reason="the kernel does not count it")


@contextmanager
def all_cpus_in_use() -> Iterator[None]:
    """Run more processes than there are CPUs, at the lowest priority."""
    program = "import os; os.nice(19)\nwhile True: pass"
    with ExitStack() as stack:
        for _ in range(2 * (os.cpu_count() or 1)):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", program]))
            stack.callback(process.kill)
        yield


@needs_pressure
def test_a_sidecar_reports_that_its_host_is_busy(cluster: Cluster, database: str, tmp_path: Path) -> None:
    cluster.sql("CREATE TABLE account (id int PRIMARY KEY)", database)
    with running(cluster, database, tmp_path) as sidecar, all_cpus_in_use(), cluster.connect(database) as session:

        def is_busy() -> bool:
            session.execute("INSERT INTO account SELECT count(*) FROM account")  # a delivery looks at the host
            return sidecar.metric(f'{HOST_BUSY}{{capture="main"}}') == 1

        sidecar.wait_until(is_busy, "the busy host")


@needs_pressure
def test_the_counter_of_the_kernel_is_read() -> None:
    before_s = cpu_waited_s()
    assert before_s is not None
    after_s = cpu_waited_s()
    assert after_s is not None
    assert 0 <= before_s <= after_s


@pytest.mark.parametrize(
    ("content", "waited_s"),
    [
        (
            "some avg10=0.12 avg60=0.00 avg300=1.00 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
            2.5,
        ),
        ("some avg10=0.12 avg60=0.00 avg300=1.00 total=0\n", 0.0),
        ("full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n", None),
        ("some avg10=0.12\n", None),
        ("some\n\n", None),
        ("some total=x\n", None),
        ("\u00e9", None),
        ("", None),
    ],
)
def test_other_contents_of_the_file_are_no_counter(tmp_path: Path, content: str, waited_s: float | None) -> None:
    (tmp_path / "cpu").write_text(content)
    assert cpu_waited_s(tmp_path / "cpu") == waited_s


def test_without_the_file_there_is_no_counter(tmp_path: Path) -> None:
    assert cpu_waited_s(tmp_path / "cpu") is None
