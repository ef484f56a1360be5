"""The metrics of a running sidecar, scraped by a real Prometheus, and the dashboard that is drawn from them."""

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import NewCluster
from tests.support import prometheus
from tests.support.captures import Sidecar, running
from tests.support.postgres import Cluster
from tidemark.io import metrics
from tidemark.io.metrics import Metrics, MetricsServer
from tidemark.io.outbox import OutboxReader
from tidemark.model.errors import ConfigError

DASHBOARD = Path(__file__).parents[2] / "conf" / "grafana" / "tidemark.json"
DEADLINE_S = 60.0
ROWS = 20
NAMES = {value for name, value in vars(metrics).items() if name.isupper() and str(value).startswith("tidemark_")}


def expressions() -> list[str]:
    """Return every query of the dashboard, with its variables as Grafana fills them in."""
    board = json.loads(DASHBOARD.read_text())
    targets = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return [expression.replace("$capture", ".*") for expression in targets]


def served(sidecar: Sidecar) -> str:
    """Return where the sidecar serves its metrics."""
    event = next(event for event in reversed(sidecar.events()) if event["event"] == "serving metrics")
    return f"{event['host']}:{event['port']}"


def scrape(sidecar: Sidecar) -> str:
    """Return what it serves now."""
    with urllib.request.urlopen(f"http://{served(sidecar)}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def value(text: str, name: str) -> float:
    """Return what a metric of the capture stands at."""
    found = re.search(rf'^{name}\{{capture="main"\}} (\S+)$', text, re.MULTILINE)
    assert found, text
    return float(found.group(1))


@contextmanager
def busy(cluster: Cluster, database: str, root: Path) -> Iterator[Sidecar]:
    """Run a sidecar that has copied, delivered, and been confirmed."""
    with running(cluster, database, root, copy=True) as sidecar:
        with OutboxReader.open(sidecar.folder) as reader:
            reader.register("spark")
            for number in range(ROWS):
                cluster.sql(f"INSERT INTO account VALUES ({number}, 'x')", database)
            sidecar.catch_up()
            reader.confirm("spark", reader.head(), reader.head())
        yield sidecar


@pytest.mark.feature("I42")
def test_a_running_sidecar_serves_every_metric_there_is(new_cluster: NewCluster, tmp_path: Path) -> None:
    cluster = new_cluster(15)
    cluster.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
    with busy(cluster, "postgres", tmp_path) as sidecar:
        deadline = time.monotonic() + DEADLINE_S
        # Counted once they are delivered, by the copy or by the stream: rows may be there before its snapshot.
        while value(text := scrape(sidecar), metrics.ROWS) + value(text, metrics.COPY_ROWS) != ROWS:
            assert time.monotonic() < deadline, text
    found = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    assert {name.removesuffix("_total") for name in NAMES} <= {name.removesuffix("_total") for name in found}
    assert re.search(r'^tidemark_node_connected\{capture="main"\} 1\.0$', text, re.MULTILINE)
    assert "account" not in text, "no relation name is a label"


@pytest.mark.skipif(prometheus.program() is None, reason="NOT TESTED: Prometheus is not installed (apt: prometheus)")
def test_every_query_of_the_dashboard_has_an_answer(new_cluster: NewCluster, tmp_path: Path) -> None:
    cluster = new_cluster(15)
    cluster.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
    with busy(cluster, "postgres", tmp_path) as sidecar, prometheus.scraping(served(sidecar), tmp_path) as server:
        unanswered = expressions()
        assert len(unanswered) > 20
        deadline = time.monotonic() + DEADLINE_S
        number = 100
        while unanswered:  # rates need a few scrapes
            assert time.monotonic() < deadline, unanswered
            number += 1
            cluster.sql(f"INSERT INTO account VALUES ({number}, 'x')")
            unanswered = [expression for expression in unanswered if not server.query(expression)]


def test_the_dashboard_asks_for_no_metric_that_does_not_exist() -> None:
    asked = {name for expression in expressions() for name in re.findall(r"tidemark_\w+", expression)}
    assert asked - {f"{name}_bucket" for name in NAMES} <= NAMES
    assert NAMES - {name.removesuffix("_bucket") for name in asked} == set(), "and shows all that do"


def test_a_taken_port_is_a_config_error() -> None:
    first = MetricsServer(Metrics("main"), "127.0.0.1", 0)
    with pytest.raises(ConfigError, match=f"cannot serve metrics on 127.0.0.1:{first.port}"):
        MetricsServer(Metrics("main"), "127.0.0.1", first.port)
    first.close()
