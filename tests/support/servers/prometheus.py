"""A real Prometheus for a test, and its promtool: Debian's package, or the one in PATH or TIDEMARK_PROMETHEUS."""

import json
import os
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import free_port

START_S = 120.0


def program() -> str | None:
    """Return the path of `prometheus`, None if it is not installed."""
    return os.environ.get("TIDEMARK_PROMETHEUS") or shutil.which("prometheus")


def promtool() -> str | None:
    """Return the path of `promtool`, which comes with it; None if it is not installed."""
    server = program()
    beside = shutil.which("promtool", path=Path(server).parent) if server else None
    return beside or shutil.which("promtool")


class Prometheus:
    """A running server."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"

    def query(self, expression: str) -> list[dict[str, object]]:
        """Return the series of an instant query; raise the server's error."""
        arguments = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self._base}/api/v1/query?{arguments}", timeout=60) as answer:
            reported = json.load(answer)
        assert reported["status"] == "success", reported
        found: list[dict[str, object]] = reported["data"]["result"]
        return found

    def wait_for(self, expression: str) -> None:
        """Wait until a query has an answer."""
        wait_until(lambda: bool(self.query(expression)), expression, within_s=START_S)

    def ready(self) -> bool:
        """Return whether it answers."""
        try:
            with urllib.request.urlopen(f"{self._base}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@contextmanager
def scraping(targets: Mapping[str, str], folder: Path) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes a host:port for each job five times a second."""
    command = program()
    assert command is not None, "prometheus is not installed"
    port = free_port()
    config = folder / "prometheus.yml"
    jobs = [{"job_name": job, "static_configs": [{"targets": [target]}]} for job, target in targets.items()]
    interval = {"scrape_interval": "200ms", "scrape_timeout": "200ms"}
    config.write_text(json.dumps({"global": interval, "scrape_configs": jobs}))  # JSON is YAML
    arguments = [
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([command, *arguments], stdout=log, stderr=log, cwd=folder)
    server = Prometheus(port)
    try:
        wait_until(lambda: process.poll() is not None or server.ready(), "Prometheus", within_s=START_S)
        assert process.poll() is None, (folder / "prometheus.log").read_text()
        yield server
    finally:
        process.terminate()
        process.wait(timeout=120)
