"""The port of a pipeline's metrics: the assigned port by default, so that no panel is empty."""

from pathlib import Path

import pytest

from tidemark.io.process.metrics_ports import assigned_ports
from tidemark.io.state.state_folder import StateFolder
from tidemark.pipeline.driver.arguments import parse_arguments
from tidemark.pipeline.driver.program import metrics_port


@pytest.mark.parametrize(
    ("options", "port"),
    [
        ((), 9753),
        (("--metrics-port", "0"), 0),
        (("--metrics-port", "7"), 7),
        (("--no-metrics",), None),
        (("--reader", "other"), None),
        (("--reader", "other", "--metrics-port", "7"), 7),
    ],
)
def test_a_pipeline_serves_metrics_on_the_port_that_its_state_was_assigned(
    tmp_path: Path, options: tuple[str, ...], port: int | None
) -> None:
    folder = StateFolder(tmp_path)
    folder.ports.write_text('{"sidecar": 9751, "archiver": 9752, "pipeline": 9753}')
    given = parse_arguments(["--state", str(tmp_path), "--lake", str(tmp_path), *options])
    assert metrics_port(given, assigned_ports(folder)) == port


def test_a_state_without_assigned_ports_has_a_pipeline_without_metrics(tmp_path: Path) -> None:
    given = parse_arguments(["--state", str(tmp_path), "--lake", str(tmp_path)])
    assert metrics_port(given, assigned_ports(StateFolder(tmp_path))) is None
