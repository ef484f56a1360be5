"""Ports of the metrics: each state of a host has its own, whichever user created it, running or not."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import astuple
from pathlib import Path

import pytest

from tidemark.io.process import metrics_ports
from tidemark.io.process.config_loading import load_config
from tidemark.io.process.metrics_ports import DamagedPorts, MetricsPorts, assign_ports, assigned_ports
from tidemark.io.state.state_folder import StateFolder


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Have ports assigned from an unused range, by a separate registry."""
    monkeypatch.setenv("TIDEMARK_PORTS_FOLDER", str(tmp_path / "registry"))
    for first in range(20_000, 32_000, 30):
        with ExitStack() as stack:
            try:
                for port in range(first, first + 30):
                    stack.enter_context(socket.socket()).bind(("", port))
            except OSError:
                continue
        monkeypatch.setattr(metrics_ports, "FIRST_PORT", first)
        yield first
        return
    pytest.fail("no thirty ports in a row are free")


def state(path: Path) -> StateFolder:
    folder = StateFolder(path)
    folder.make()
    return folder


def test_states_get_the_first_ports_that_no_other_state_has_wherever_it_is(first: int, tmp_path: Path) -> None:
    one, two, three = (state(tmp_path / place) for place in ("a/one", "a/two", "b/three"))
    assert assign_ports(one) == assigned_ports(one) == MetricsPorts(first, first + 1, first + 2)
    assert assign_ports(two) == MetricsPorts.starting_at(first + 3)
    assert assign_ports(three) == MetricsPorts.starting_at(first + 6)
    assert assign_ports(one) == MetricsPorts.starting_at(first)


def test_a_port_in_use_is_skipped(first: int, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", first + 2)):
        assert assign_ports(state(tmp_path / "one")) == MetricsPorts.starting_at(first + 3)


def test_the_ports_of_a_removed_state_are_assigned_again(first: int, tmp_path: Path) -> None:
    one, two = state(tmp_path / "a/one"), state(tmp_path / "b/two")
    assign_ports(one)
    one.root.rename(tmp_path / "elsewhere")
    assert assign_ports(two) == MetricsPorts.starting_at(first)


def test_states_in_one_folder_need_no_registry(first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_PORTS_FOLDER", str(tmp_path / "file" / "below"))
    (tmp_path / "file").touch()
    assert assign_ports(state(tmp_path / "a/one")) == MetricsPorts.starting_at(first)
    assert assign_ports(state(tmp_path / "a/two")) == MetricsPorts.starting_at(first + 3)


def test_a_state_that_has_run_without_ports_keeps_those_of_the_configuration(first: int, tmp_path: Path) -> None:
    folder = state(tmp_path / "old")
    folder.lock("sidecar").touch()
    assert assign_ports(folder) is None
    assert assigned_ports(folder) is None
    assert first
    metrics = load_config(None, {}).metrics
    assert (metrics.port, metrics.archiver_port) == (9748, 9749)


def test_the_configuration_takes_precedence_over_assigned_ports(first: int, tmp_path: Path) -> None:
    ports = assign_ports(state(tmp_path / "one"))
    assert ports is not None
    assert astuple(ports)[0] == first
    file = tmp_path / "tidemark.toml"
    file.write_text("[metrics]\narchiver_port = 7\n")
    metrics = load_config(file, {}, ports.defaults()).metrics
    assert (metrics.port, metrics.archiver_port) == (first, 7)
    assert load_config(file, {"TIDEMARK_METRICS__PORT": "8"}, ports.defaults()).metrics.port == 8


@pytest.mark.parametrize("text", ["", "[]", '{"sidecar": 1}', '{"sidecar": "1", "archiver": 2, "pipeline": 3}'])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    folder = state(tmp_path / "one")
    folder.ports.write_text(text)
    with pytest.raises(DamagedPorts, match=r"ports\.json contains no ports"):
        assigned_ports(folder)
