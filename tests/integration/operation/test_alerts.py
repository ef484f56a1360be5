"""The alert rules: promtool accepts them, and rules, tests and guide refer to each other."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.operation.test_metrics import NAMES, OF_THE_PIPELINE, served
from tests.support.processes.failover import Pair, archiving_node, paired
from tests.support.servers import prometheus
from tidemark.io.process import metrics
from tidemark.io.readers.outbox import OutboxReader
from tidemark.model.mode import Stage
from tidemark.wal.kernel import COMPILED

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "conf" / "prometheus"
RULES = FOLDER / "tidemark-rules.yml"
RULES_TESTS = FOLDER / "tidemark-rules.test.yml"
SEVERITIES = {"critical", "warning"}
SPACE = {"TidemarkArchiveSpaceLow", "TidemarkArchiveSpaceFalls"}
ARCHIVE = (metrics.ARCHIVE_BYTES, metrics.ARCHIVE_FREE, metrics.ARCHIVE_HOLES, metrics.ARCHIVED_LSN)
INTERPRETED = "TidemarkKernelsInterpreted"
without_promtool = pytest.mark.skipif(
    prometheus.promtool() is None, reason="NOT TESTED: promtool is not installed (apt: prometheus)"
)


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule, as written in its file."""

    name: str
    text: str

    @property
    def expression(self) -> str:
        """Its query, on one line."""
        found = re.search(r"^        expr: (?:\|\n)?(.*?)^        for: ", self.text, re.MULTILINE | re.DOTALL)
        assert found, self.name
        return " ".join(found.group(1).split()).strip("'")

    def value(self, key: str) -> str:
        """Return the value of a key."""
        found = re.search(rf"\b{key}: ?(.+)", self.text)
        assert found, (self.name, key)
        return found.group(1).strip("'{}")


def alerts() -> list[Alert]:
    """Return all rules."""
    parts = re.split(r"^      - alert: (\w+)\n", RULES.read_text(), flags=re.MULTILINE)[1:]
    return [Alert(name, text) for name, text in zip(parts[::2], parts[1::2], strict=True)]


def asked(text: str) -> set[str]:
    """Return the metrics that a text contains."""
    return {name.removesuffix("_bucket") for name in re.findall(r"\btidemark_\w+", text)}


def anchors(page: Path) -> set[str]:
    """Return the headings of a page, as links to them are written."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@without_promtool
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "tidemark-rules.yml"),
        ("check", "config", "prometheus.yml"),
        ("test", "rules", "tidemark-rules.test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_finds_nothing_wrong(arguments: tuple[str, ...]) -> None:
    command = [str(prometheus.promtool()), *arguments]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_an_alert_queries_existing_metrics_and_has_a_severity_and_a_link_to_help(alert: Alert) -> None:
    found = asked(alert.expression)
    assert found <= NAMES | OF_THE_PIPELINE
    assert found or "up{" in alert.expression
    assert re.fullmatch(r"\d+[mh]", alert.value("for"))
    assert alert.value("severity") in SEVERITIES
    assert alert.value("summary")
    assert alert.value("description")
    page, _, anchor = alert.value("runbook").partition("#")
    assert anchor in anchors(ROOT / page)


def test_every_alert_is_tested_firing_and_silent() -> None:
    """And each test has a name that states this: promtool prints it."""
    parts = re.split(r"^  - name: (.+)\n", RULES_TESTS.read_text(), flags=re.MULTILINE)[1:]
    tested = set()
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        alert, _, what = name.partition(" ")
        assert re.findall(r"alertname: (\w+)", text) == [alert]
        assert ("exp_alerts: []" in text) == (what == "is silent")
        assert ("exp_labels:" in text) == (what == "fires")
        tested.add((alert, what))
    assert tested == {(alert.name, what) for alert in alerts() for what in ("fires", "is silent")}


@pytest.mark.skipif(prometheus.program() is None, reason="NOT TESTED: Prometheus is not installed (apt: prometheus)")
@pytest.mark.parametrize("archiver_runs", [True, False])
def test_a_healthy_capture_raises_no_alert(tmp_path: Path, *, archiver_runs: bool) -> None:
    """Without the `for` time of the rules: their queries have no result in the end."""
    with archiving_node() as node, paired(node, tmp_path) as pair:
        node.node.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        node.switch()
        targets = {"tidemark-sidecar": served(pair.sidecar), "tidemark-archiver": served(pair.archiver)}
        if not archiver_runs:
            pair.archiver.stop()
            del targets["tidemark-archiver"]
        with prometheus.scraping(targets, tmp_path) as server:
            with OutboxReader.open(pair.sidecar.folder) as reader:
                reader.register("lake")
                pair.insert(*range(10))
                pair.catch_up()
                reader.confirm("lake", reader.head(), reader.head())
            server.wait_for("tidemark_node_connected == 1")
            server.wait_for("count_over_time(tidemark_confirmed_lsn_bytes[1m]) > 2")  # for the rules over a time
            if archiver_runs:
                for seen in ARCHIVE:
                    server.wait_for(f"{seen} > -1")  # a number: it has been checked
            wait_until_raised(server, pair, tmp_path, set())


@pytest.mark.skipif(prometheus.program() is None, reason="NOT TESTED: Prometheus is not installed (apt: prometheus)")
def test_a_killed_sidecar_raises_the_alerts_that_are_meant_for_it_and_no_others(tmp_path: Path) -> None:
    with archiving_node() as node, paired(node, tmp_path) as pair:
        targets = {"tidemark-sidecar": served(pair.sidecar), "tidemark-archiver": served(pair.archiver)}
        with prometheus.scraping(targets, tmp_path) as server:
            server.wait_for("tidemark_node_connected == 1")
            pair.sidecar.kill()
            pair.wait_for_stage(Stage.ARCHIVE)
            server.wait_for(f"max(tidemark_mode) == {Stage.ARCHIVE.number}")
            server.wait_for('up{job="tidemark-sidecar"} == 0')
            wait_until_raised(server, pair, tmp_path, {"TidemarkSidecarDown", "TidemarkNotRealtime"})


def wait_until_raised(server: prometheus.Prometheus, pair: Pair, root: Path, expected: set[str]) -> None:
    """Wait until exactly these alerts are raised: others may be for a moment, hence the rules' `for` times."""
    raised: list[set[str]] = []

    def as_expected() -> bool:
        raised.append({alert.name for alert in alerts() if server.query(alert.expression)} - of_this_machine(root))
        return raised[-1] == expected

    try:
        pair.wait_for(as_expected, f"{expected}, with nothing else raised,")
    except AssertionError as error:
        raise AssertionError(f"raised at last: {raised[-1]}") from error


def of_this_machine(folder: Path) -> set[str]:
    """Return the alerts that are correct on this machine."""
    interpreted = set() if COMPILED else {INTERPRETED}
    return interpreted if shutil.disk_usage(folder).free > 20 << 30 else interpreted | SPACE


def test_the_page_on_failover_names_tests_that_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "failover.md").read_text()))
    there = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert named
    assert named <= there


def test_the_page_on_failover_names_alerts_that_exist() -> None:
    named = set(re.findall(r"`(Tidemark[A-Z]\w+)`", (ROOT / "docs" / "failover.md").read_text()))
    assert named
    assert named <= {alert.name for alert in alerts()}
