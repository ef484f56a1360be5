"""The mutation tool: the mutants that it makes, their names, and that its list of equivalents is current."""

from pathlib import Path

import pytest

from scripts.mutation.__main__ import MutantResult, Results
from scripts.mutation.equivalents import read_equivalents, stale_entries
from scripts.mutation.operators import Mutant, mutants_of
from scripts.mutation.plan import PLANS

TREE = Path(__file__).parents[2]
SAMPLE = b'''\
"""A sample."""

TABLE = {
    "a": 1,
    **{"b": 2},
}


class Window:
    def holds(self, lsn: int) -> bool:
        assert self.start is not None
        assert self.start >= 0, "no LSN is negative"
        if not (self.start <= lsn) or lsn in self.gaps:
            return False
        return lsn < self.end and not self.is_closed


def walk(items: list[int]) -> int:
    seen = 0
    while seen < 10:
        for item in [item for item in items if item]:
            if item == 3:
                seen += 1
                continue
            seen = min(seen, item - 1)
    return "text" + str(seen)
'''
EXPECTED = {
    "<module> entry 0": '"a": 1, -> ',
    "<module> entry 1": '**{"b": 2}, -> ',
    "Window.holds assert 0": 'assert self.start >= 0, "no LSN is negative" -> pass',
    "Window.holds compare 0": ">= -> >",
    "Window.holds compare 1": "<= -> <",
    "Window.holds compare 2": "<= -> >",
    "Window.holds compare 3": "< -> <=",
    "Window.holds guard 0": (
        "not (self.start <= lsn) or lsn in self.gaps -> ((not (self.start <= lsn) or lsn in self.gaps) or True)"
    ),
    "Window.holds operand 0": "not (self.start <= lsn) -> ((not (self.start <= lsn)) and False)",
    "Window.holds operand 1": "lsn in self.gaps -> ((lsn in self.gaps) and False)",
    "Window.holds operand 2": "lsn < self.end -> ((lsn < self.end) or True)",
    "Window.holds operand 3": "not self.is_closed -> ((not self.is_closed) or True)",
    "walk compare 0": "< -> <=",
    "walk exit 0": "continue -> pass",
    "walk extreme 0": "min -> max",
    "walk guard 0": "seen < 10 -> ((seen < 10) and False)",
    "walk guard 1": "seen < 10 -> ((seen < 10) or True)",
    "walk guard 2": "item -> ((item) and False)",
    "walk guard 3": "item -> ((item) or True)",
    "walk guard 4": "item == 3 -> ((item == 3) and False)",
    "walk guard 5": "item == 3 -> ((item == 3) or True)",
    "walk sign 0": "+ -> -",
    "walk sign 1": "- -> +",
}


@pytest.fixture(scope="module")
def all_mutants() -> list[Mutant]:
    return [mutant for module in PLANS for mutant in mutants_of(module, (TREE / module).read_bytes())]


def test_every_comparison_guard_and_early_return_of_a_sample_is_mutated_once() -> None:
    found = mutants_of("sample.py", SAMPLE)
    assert {mutant.name: mutant.change for mutant in found} == EXPECTED
    assert len(found) == len(EXPECTED)


def test_code_that_only_a_compiled_kernel_runs_is_not_mutated() -> None:
    kernel = b"""\
def copy(length: int) -> int:
    if cython.compiled:
        if length > 0:
            memcpy(length - 1)
    else:
        move(length + 1)
    return length
"""
    assert [mutant.change for mutant in mutants_of("kernel.py", kernel)] == ["+ -> -"]


def test_a_mutant_differs_from_the_source_in_its_change_alone() -> None:
    for mutant in mutants_of("sample.py", SAMPLE):
        mutated = mutant.apply(SAMPLE)
        compile(mutated, "sample.py", "exec")
        assert mutated != SAMPLE
        assert mutated[: mutant.start] == SAMPLE[: mutant.start]
        assert mutated.endswith(SAMPLE[mutant.end :])


def test_the_name_of_a_mutant_does_not_depend_on_its_line() -> None:
    moved = SAMPLE.replace(b"TABLE", b"# more\n\nTABLE")
    assert [mutant.name for mutant in mutants_of("sample.py", moved)] == [
        mutant.name for mutant in mutants_of("sample.py", SAMPLE)
    ]


def test_the_mutation_that_left_out_the_running_transactions_is_made() -> None:
    module = "tidemark/model/snapshot.py"
    changes = [mutant.change for mutant in mutants_of(module, (TREE / module).read_bytes())]
    assert "xid not in self.running -> ((xid not in self.running) or True)" in changes


def test_the_list_of_equivalent_mutants_is_current(all_mutants: list[Mutant]) -> None:
    assert stale_entries(read_equivalents(), all_mutants) == []


def test_an_entry_whose_code_has_changed_is_stale(all_mutants: list[Mutant]) -> None:
    mutant = all_mutants[0]
    listed = {(mutant.module, mutant.name): (mutant.change, "a reason")}
    assert stale_entries(listed, all_mutants) == []
    assert stale_entries({(mutant.module, mutant.name): ("x -> y", "a reason")}, all_mutants)
    assert stale_entries({(mutant.module, "gone guard 0"): (mutant.change, "a reason")}, all_mutants)


@pytest.mark.parametrize("reasons", [("",), (" ",), ("one", "two")])
def test_an_entry_needs_one_reason(tmp_path: Path, reasons: tuple[str, ...]) -> None:
    entry = '[[equivalent]]\nmodule = "m"\nmutant = "f guard 0"\nchange = "a -> b"\nreason = "{}"\n'
    path = tmp_path / "equivalents.toml"
    path.write_text("".join(entry.format(reason) for reason in reasons))
    with pytest.raises(ValueError, match="f guard 0"):
        read_equivalents(path)


@pytest.mark.parametrize("outcome", ["killed", "survived"])
def test_a_result_is_valid_for_one_source_and_its_tests_alone(
    tmp_path: Path, all_mutants: list[Mutant], outcome: str
) -> None:
    mutant = all_mutants[0]
    path = tmp_path / "results.jsonl"
    stored = MutantResult(mutant.module, mutant.name, mutant.change, "tests", outcome, "", "source")
    Results(path).put(stored)
    found = Results(path)
    assert found.get(mutant, "source", "tests") == stored
    assert found.get(mutant, "other source", "tests") is None
    assert found.get(mutant, "source", "other tests") is None


def test_every_module_of_the_plan_and_its_tests_exist() -> None:
    assert len(PLANS) >= 15
    for module, plan in PLANS.items():
        for path in (module, *plan.fast, *plan.slow):
            assert (TREE / path).exists(), path
