"""docs/exit-codes.md agrees with `ExitCode`, and a test has seen a program end with each code."""

import ast
from pathlib import Path

import pytest
from tidemark_ctl.main import INTERRUPTED

from tidemark.model.errors import ExitCode, TidemarkError

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "exit-codes.md"
COLUMNS = 5
# The tests that run a program which ends with the code; 1 and 70 appear in a daemon's log only.
WITNESSES = {
    ExitCode.SUCCESS: (
        "faults/test_bad_input_node.py",
        "test_privileges_that_are_missing_are_named_until_they_are_granted",
    ),
    ExitCode.UNEXPECTED: ("unit/config/test_ending.py", "test_each_kind_of_error_ends_a_daemon_with_a_separate_code"),
    ExitCode.CONFIG: ("faults/test_bad_input_config.py", "test_init_names_file_and_key_of_a_bad_configuration"),
    ExitCode.FENCED: (
        "faults/test_bad_input_state.py",
        "test_a_second_sidecar_names_the_first_which_continues_undisturbed",
    ),
    ExitCode.GAP: (
        "faults/test_bad_input_wal.py",
        "test_wal_that_the_node_removed_while_the_sidecar_was_down_is_a_gap_until_it_is_restored",
    ),
    ExitCode.CORRUPT_WAL: (
        "faults/test_bad_input_wal.py",
        "test_wal_that_is_damaged_on_the_node_stops_the_sidecar_at_its_lsn_until_it_is_repaired",
    ),
    ExitCode.CONSUMER_FAILED: (
        "faults/test_bad_input_config.py",
        "test_a_consumer_that_cannot_write_ends_the_sidecar_with_a_separate_code_and_receives_all_afterwards",
    ),
    ExitCode.NODE_UNREACHABLE: (
        "faults/test_bad_input_node.py",
        "test_a_node_that_is_unreachable_is_named_and_reported_as_unreachable",
    ),
    ExitCode.NODE_UNFIT: (
        "faults/test_bad_input_node.py",
        "test_a_node_without_logical_wal_is_refused_until_it_has_it",
    ),
    ExitCode.STATE: ("faults/test_bad_input_state.py", "test_without_a_state_every_command_names_the_folder_and_init"),
    ExitCode.INTERNAL: ("unit/config/test_ending.py", "test_each_kind_of_error_ends_a_daemon_with_a_separate_code"),
}


def table() -> dict[int, list[str]]:
    """Return the rows of the page by code."""
    rows = [
        [cell.strip() for cell in line.strip("|\n ").split("|")]
        for line in PAGE.read_text().splitlines()
        if "|" in line
    ]
    return {int(row[0]): row[1:] for row in rows if row[0].isdecimal()}


@pytest.mark.feature("I40")
def test_the_page_names_each_code_as_the_code_does_and_states_what_to_do() -> None:
    rows = table()
    assert {code: rows[code][0] for code in rows if code != INTERRUPTED} == {int(code): code.name for code in ExitCode}
    assert INTERRUPTED in rows
    for row in rows.values():
        assert len(row) == COLUMNS - 1
        assert all(row)


@pytest.mark.feature("I40")
@pytest.mark.parametrize("code", ExitCode)
def test_each_code_is_observed_by_the_test_that_is_named_for_it(code: ExitCode) -> None:
    path, name = WITNESSES[code]
    tree = ast.parse((ROOT / "tests" / path).read_text())
    (found,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    named = {node.attr for node in ast.walk(found) if isinstance(node, ast.Attribute)} | {
        node.id for node in ast.walk(found) if isinstance(node, ast.Name)
    }
    assert code.name in named or (code is ExitCode.SUCCESS and "succeeded" in named)


def test_no_class_of_errors_has_a_code_that_the_page_lacks() -> None:
    def kinds(kind: type[TidemarkError]) -> set[ExitCode]:
        return {kind.exit_code}.union(*(kinds(narrower) for narrower in kind.__subclasses__()))

    assert kinds(TidemarkError) <= set(ExitCode) - {ExitCode.SUCCESS}
