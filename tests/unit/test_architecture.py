"""ARCHITECTURE.md shows what is enforced: the rooms of import-linter's contracts, the states of the stream lease."""

import re
from configparser import ConfigParser
from pathlib import Path

import pytest

from tidemark.runtime.capture import stream_lease
from tidemark.runtime.capture.stream_lease import DECODE_THREAD_DECODES, NETWORK_READS, NEXT, LeaseEvent, LeaseState

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
CONTRACTS = ConfigParser()
CONTRACTS.read(ROOT / ".importlinter")
OUTSIDE_ROOMS = {
    "__main__",
    "main",
    "opened_capture",
    "opened_state",
    "settings",
    "options",
    "loading",
    "terminal_log",
    "failure_text",
    "termination",
}  # single modules
APPLICATION_READS = (LeaseState.READING, LeaseState.LEAVING)
APPLICATION_DECODES = (LeaseState.INLINE, LeaseState.RECALLED)


def layers(contract: str) -> list[list[str]]:
    """Return the names of each row of a contract, without single modules."""
    rows = CONTRACTS[f"importlinter:contract:{contract}"]["layers"].split("\n")
    names = [[name.strip() for name in row.split("|") if name.strip() not in OUTSIDE_ROOMS] for row in rows]
    return [row for row in names if row and row != [""]]


def table(head: str) -> list[list[str]]:
    """Return the cells of the table whose head begins with `head`."""
    lines = TEXT[TEXT.index(f"\n| {head} |") + 1 :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize(
    ("package", "contract"),
    [
        ("tidemark.decode", "decode"),
        ("tidemark.embedding", "embedding"),
        ("tidemark.runtime", "runtime"),
        ("tidemark.io", "io"),
        ("tidemark.pipeline", "pipeline"),
        ("tidemark_ctl", "ctl"),
    ],
)
def test_the_table_of_a_packages_rooms_equals_its_contract(package: str, contract: str) -> None:
    rows = [re.findall(r"`(\w+)`", cells[0]) for cells in table(f"`{package}` | what is in it")]
    assert [sorted(row) for row in rows] == [sorted(row) for row in layers(contract)]


def test_the_table_of_layers_equals_the_contracts() -> None:
    rows = [[name.rpartition(".")[2] for name in re.findall(r"`([\w.]+)`", cells[0])] for cells in table("layer")]
    expected = [*layers("processes")[:1], *layers("core")]
    assert [sorted(row) for row in rows] == [sorted(row) for row in expected]


def test_the_drawing_of_the_stream_lease_shows_each_transition_and_no_other() -> None:
    drawn = {
        (LeaseState[before], LeaseEvent(event.strip())): LeaseState[after]
        for before, after, events in re.findall(
            r"^    ([A-Z]+) --> ([A-Z]+): ([a-z, ]+?)(?: \(.*\))?$", TEXT, re.MULTILINE
        )
        for event in events.split(",")
    }
    assert drawn == NEXT


def test_the_tables_of_the_stream_lease_name_the_threads_that_read_and_decode() -> None:
    expected = {state.name: (_reader(state), _decoder(state)) for state in LeaseState}
    drawn = {name: (cells[1], cells[2]) for cells in table("state | reads the socket") for name in cells[0].split(", ")}
    assert drawn == expected
    in_module = re.findall(r"^\| ([A-Z]+) +\| ([a-z ]+?) +\| ([a-z ]+?) +\|$", stream_lease.__doc__ or "", re.MULTILINE)
    assert {state: (reads, decodes) for state, reads, decodes in in_module} == expected


def _reader(state: LeaseState) -> str:
    return (
        "network thread" if state in NETWORK_READS else "application thread" if state in APPLICATION_READS else "none"
    )


def _decoder(state: LeaseState) -> str:
    decodes = "decode thread" if state in DECODE_THREAD_DECODES else "none"
    return "application thread" if state in APPLICATION_DECODES else decodes
