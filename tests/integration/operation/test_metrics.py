"""The metrics of a running sidecar, scraped by a real Prometheus, and the dashboard that uses them."""

import json
import math
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import NotRequired, TypedDict

import pytest

from tests.conftest import NewCluster
from tests.support.processes.captures import Sidecar, running
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.servers import prometheus
from tests.support.servers.postgres import Cluster, database_in
from tidemark.engine.handover import Event
from tidemark.io.flight import server_metrics
from tidemark.io.flight.server_metrics import ServerMetrics
from tidemark.io.process import metrics
from tidemark.io.process.metrics import Metrics
from tidemark.io.process.metrics_ports import assigned_ports
from tidemark.io.process.metrics_server import MetricsServer
from tidemark.io.readers.outbox import OutboxReader
from tidemark.model.errors import ConfigError
from tidemark.model.mode import Stage
from tidemark.pipeline.landing import metrics as pipeline_metrics
from tidemark.pipeline.landing.metrics import PipelineMetrics
from tidemark.wire.marker import Ignored, MarkerKind

DASHBOARD = Path(__file__).parents[3] / "conf" / "grafana" / "tidemark.json"
DEADLINE_S = 120.0
ROWS = 20
NAMES = {value for name, value in vars(metrics).items() if name.isupper() and str(value).startswith("tidemark_")}
OF_THE_PIPELINE = {
    value for name, value in vars(pipeline_metrics).items() if name.isupper() and str(value).startswith("tidemark_")
}
OF_THE_SERVER = {
    value for name, value in vars(server_metrics).items() if name.isupper() and str(value).startswith("tidemark_")
}


class AlertTarget(TypedDict):
    """A query of a panel."""

    expr: str


class Meaning(TypedDict):
    """A panel's text for a value."""

    text: str


class Mapping(TypedDict):
    """A panel's texts for values."""

    options: dict[str, Meaning]


class Defaults(TypedDict):
    """The display options of a panel's values."""

    mappings: NotRequired[list[Mapping]]


class FieldConfig(TypedDict):
    """The same, with exceptions."""

    defaults: Defaults


class DashboardPanel(TypedDict):
    """The parts of a panel that the tests read."""

    type: str
    targets: list[AlertTarget]
    fieldConfig: FieldConfig


def panels() -> list[DashboardPanel]:
    """Return the dashboard's panels; its rows are titles between them."""
    board = json.loads(DASHBOARD.read_text())
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    """Return every query of the dashboard, with its variables in Grafana's expansion."""
    return [target["expr"].replace("$capture", ".*") for panel in panels() for target in panel["targets"]]


def served(sidecar: Sidecar) -> str:
    """Return the address at which the sidecar serves its metrics."""
    event = next(event for event in reversed(sidecar.events()) if event["event"] == "serving metrics")
    return f"{event['host']}:{event['port']}"


def scrape(sidecar: Sidecar) -> str:
    """Return its current metrics."""
    with urllib.request.urlopen(f"http://{served(sidecar)}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


def value(text: str, name: str) -> float:
    """Return the value of a metric of the capture."""
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
        # Counted at delivery, by the copy or by the stream: rows may exist before its snapshot.
        while value(text := scrape(sidecar), metrics.ROWS) + value(text, metrics.COPY_ROWS) != ROWS:
            assert time.monotonic() < deadline, text
    found = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    assert {name.removesuffix("_total") for name in NAMES} <= {name.removesuffix("_total") for name in found}
    assert re.search(r'^tidemark_node_connected\{capture="main"\} 1\.0$', text, re.MULTILINE)
    assert "account" not in text, "no relation name is a label"


def wait_for_realtime(sidecar: Sidecar) -> None:
    mode = 'tidemark_mode{capture="main"}'
    sidecar.wait_until(lambda: sidecar.metric(mode) == Stage.REALTIME.number, "its mode in the metrics")


def test_two_captures_of_one_host_get_separate_ports(cluster: Cluster, tmp_path: Path) -> None:
    """With the host's own registry: other captures on this machine have its ports."""
    served: list[float] = []
    with ExitStack() as stack:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            sidecar = Sidecar(cluster, stack.enter_context(database_in(cluster, f"ports_{name}")), tmp_path / name)
            stack.callback(sidecar.close)
            state, dsn = sidecar.folder.root, cluster.dsn(sidecar.database)
            made = cdcctl("init", "--state", state, "--dsn", dsn, TIDEMARK_PORTS_FOLDER="")
            assert re.search(r"metrics on 127\.0\.0\.1: sidecar \d+, archiver \d+, pipeline \d+", succeeded(made).err)
            del sidecar.options["TIDEMARK_METRICS__PORT"]
            sidecar.start()
            wait_for_realtime(sidecar)
            ports = assigned_ports(sidecar.folder)
            assert ports is not None
            assert sidecar.wait_for_event("serving metrics")["port"] == ports.sidecar
            served += astuple(ports)
    assert len(set(served)) == 6


@contextmanager
def idle(metrics: Metrics | PipelineMetrics | ServerMetrics) -> Iterator[str]:
    """Serve the metrics of a process that has done nothing yet."""
    server = MetricsServer(metrics, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        server.close()


@pytest.mark.skipif(prometheus.program() is None, reason="NOT TESTED: Prometheus is not installed (apt: prometheus)")
def test_every_query_of_the_dashboard_has_a_result(new_cluster: NewCluster, tmp_path: Path) -> None:
    cluster = new_cluster(15)
    cluster.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
    handling = Metrics("main")  # of a daemon with a handler
    handling.pool_cpu.follow(lambda: (0.0,))
    with (
        busy(cluster, "postgres", tmp_path) as sidecar,
        idle(PipelineMetrics("main")) as spark,
        idle(ServerMetrics("main")) as outbox_server,
        idle(handling) as archiver,
    ):
        targets = {
            "tidemark-sidecar": served(sidecar),
            "tidemark-spark": spark,
            "tidemark-server": outbox_server,
            "tidemark-archiver": archiver,
        }
        with prometheus.scraping(targets, tmp_path) as server:
            unanswered = expressions()
            assert len(unanswered) > 50
            deadline = time.monotonic() + DEADLINE_S
            number = 100
            while unanswered:  # rates need a few scrapes
                assert time.monotonic() < deadline, unanswered
                number += 1
                cluster.sql(f"INSERT INTO account VALUES ({number}, 'x')")
                unanswered = [expression for expression in unanswered if not server.query(expression)]


def test_the_dashboard_queries_no_metric_that_does_not_exist_and_shows_all_that_do() -> None:
    asked = {name for expression in expressions() for name in re.findall(r"tidemark_\w+", expression)}
    known = NAMES | OF_THE_PIPELINE | OF_THE_SERVER
    assert asked - {f"{name}_bucket" for name in known} <= known
    assert known - {name.removesuffix("_bucket") for name in asked} == set()


def test_every_panel_has_a_unique_id_and_place() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    cells = Counter(
        (x, y)
        for panel in dashboard["panels"]
        for at in [panel["gridPos"]]
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    )
    assert [cell for cell, count in cells.items() if count > 1] == []


def test_the_dashboard_names_each_stage_by_the_number_that_the_metric_has() -> None:
    numbers = {str(stage.number): stage.value for stage in Stage}
    drawn = [panel for panel in panels() if any(metrics.MODE in target["expr"] for target in panel["targets"])]
    assert {panel["type"] for panel in drawn} == {"stat", "state-timeline"}
    for panel in drawn:
        (mapping,) = panel["fieldConfig"]["defaults"]["mappings"]
        assert {number: meaning["text"] for number, meaning in mapping["options"].items()} == numbers


@pytest.mark.feature("I42")
def test_a_counter_by_kind_exists_for_each_kind_before_the_first_event() -> None:
    """Otherwise the first forged marker, or the first switch, would not be an increase."""
    kinds = {
        metrics.SWITCHES: {event.name for event in Event},
        metrics.MARKERS_WRITTEN: {kind.value for kind in MarkerKind},
        metrics.MARKERS_READ: {kind.value for kind in MarkerKind},
        metrics.MARKERS_IGNORED: {why.name for why in Ignored},
    }
    registry = Metrics("main").registry
    for name, expected in kinds.items():
        for kind in expected:
            labels = {metrics.CAPTURE_LABEL: "main", metrics.KIND_LABEL: kind}
            assert registry.get_sample_value(name, labels) == 0, (name, kind)


def test_the_cpu_time_of_a_pool_continues_with_the_pool_of_the_next_capture() -> None:
    made = Metrics("main")

    def cpu_s(worker: int) -> float | None:
        labels = {metrics.CAPTURE_LABEL: "main", metrics.WORKER_LABEL: str(worker)}
        return made.registry.get_sample_value(metrics.POOL_CPU, labels)

    assert cpu_s(1) is None
    first, second = [1.0, 2.0], [0.25]
    made.pool_cpu.follow(lambda: first)
    first[1] = 4.0
    assert (cpu_s(1), cpu_s(2)) == (1.0, 4.0)
    made.pool_cpu.settle()
    first[1] = 9.0
    assert (cpu_s(1), cpu_s(2)) == (1.0, 4.0)
    made.pool_cpu.follow(lambda: second)
    assert (cpu_s(1), cpu_s(2)) == (1.25, 4.0)


def test_an_archive_that_a_process_has_not_listed_is_unknown_and_not_empty() -> None:
    """A free space of 0 would be a false alarm, and 0 holes an unfounded claim."""
    registry = Metrics("main").registry
    for name in (metrics.ARCHIVE_FREE, metrics.ARCHIVE_BYTES, metrics.ARCHIVE_HOLES, metrics.ARCHIVED_LSN):
        found = registry.get_sample_value(name, {metrics.CAPTURE_LABEL: "main"})
        assert found is not None
        assert math.isnan(found), name


def test_each_metric_can_be_requested_by_its_name() -> None:
    """`/metrics?name[]=...`, which requests each metric's names when it is created."""
    registry = Metrics("main").registry
    for sample in [sample for family in registry.collect() for sample in family.samples]:
        found = registry.restricted_registry([sample.name]).collect()
        assert sample.name in {one.name for family in found for one in family.samples}


def test_a_port_in_use_is_a_config_error() -> None:
    first = MetricsServer(Metrics("main"), "127.0.0.1", 0)
    with pytest.raises(ConfigError, match=f"cannot serve metrics on 127.0.0.1:{first.port}"):
        MetricsServer(Metrics("main"), "127.0.0.1", first.port)
    first.close()
