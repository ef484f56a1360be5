"""The campaign: tests each mutant and prints the survivors. `scripts/mutate` explains the options."""

import argparse
import hashlib
import json
import os
import re
import sys
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.mutation.equivalents import read_equivalents, stale_entries
from scripts.mutation.operators import Mutant, mutants_of
from scripts.mutation.plan import PLANS, MutationTests
from scripts.mutation.trees import MutantOutcome, MutantRun, Tree, preload

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "mutate"
RESULTS = BUILD / "results.jsonl"
POLL_S = 0.01
DIGITS = 16  # of a digest
BASELINE_S_MAX = 900.0
CPU_S_MIN = 10.0
CPU_FACTOR = 3.0  # multiple of the tests' CPU time without a mutation
TIMEOUT_S_MIN = 100.0
TIMEOUT_FACTOR = 10.0  # multiple of that CPU time: tests with servers wait most of the time
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class MutantResult:
    """The result for a mutant, as stored for the next campaign."""

    module: str
    mutant: str
    change: str
    tests: str  # digest of the tests
    outcome: str
    by: str
    source: str = ""  # digest of the module; "": stored by an earlier version


class Results:
    """The results of all campaigns so far."""

    def __init__(self, path: Path = RESULTS) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self._found = {
            (found.module, found.mutant): found for found in (MutantResult(**json.loads(line)) for line in lines)
        }

    def get(self, mutant: Mutant, source: str, tests: str) -> MutantResult | None:
        """Return the result if it is still valid: neither the module nor its tests have changed."""
        found = self._found.get((mutant.module, mutant.name))
        if found is None or (found.change, found.source, found.tests) != (mutant.change, source, tests):
            return None
        return found

    def put(self, result: MutantResult) -> None:
        """Store a result."""
        self._found[result.module, result.mutant] = result
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")


class ModuleCampaign:
    """All mutants of one module."""

    def __init__(self, module: str, plan: MutationTests, options: argparse.Namespace, results: Results) -> None:
        self._module = module
        self._plan = plan
        self._options = options
        self._results = results
        self._source = (ROOT / module).read_bytes()
        self._stages = [plan.fast] if options.fast or not plan.slow else [plan.fast, plan.slow]
        self._digest = hashlib.sha256(self._source).hexdigest()[:DIGITS]
        self._tests = digest([test for stage in self._stages for test in stage])

    def run(self, trees: list[Tree]) -> list[MutantResult]:
        """Test the mutants without a result; return all results."""
        mutants = [mutant for mutant in mutants_of(self._module, self._source) if self._options.only in mutant.name]
        known = (
            {}
            if self._options.again
            else {mutant.name: self._results.get(mutant, self._digest, self._tests) for mutant in mutants}
        )
        open_ = deque(mutant for mutant in mutants if known.get(mutant.name) is None)
        found = {name: result for name, result in known.items() if result is not None}
        if open_:
            bounds_s = self._baseline(trees[0])
            running: dict[int, _Testing] = {}
            while open_ or running:
                for number, tree in enumerate(trees):
                    if number not in running and open_:
                        running[number] = _Testing(tree, open_.popleft(), self._source, self._stages, bounds_s)
                for number, testing in list(running.items()):
                    result = testing.poll(self._digest, self._tests)
                    if result is not None:
                        del running[number]
                        found[result.mutant] = result
                        self._results.put(result)
                time.sleep(POLL_S)
        return [found[mutant.name] for mutant in mutants]

    def _baseline(self, tree: Tree) -> list[tuple[float, float]]:
        """Return the limits of CPU time and time for each stage; the tests must pass without a mutation."""
        bounds_s = []
        for stage in self._stages:
            run = MutantRun(tree, stage, BASELINE_S_MAX, BASELINE_S_MAX)
            while (ended := run.poll()) is None:
                time.sleep(POLL_S)
            outcome, used_s = ended
            if outcome is not MutantOutcome.SURVIVED:
                sys.exit(f"{self._module}: the tests fail without a mutation\n{tree.output()[-3000:]}")
            bounds_s.append((CPU_S_MIN + CPU_FACTOR * used_s, TIMEOUT_S_MIN + TIMEOUT_FACTOR * used_s))
            print(f"  {' '.join(stage)}: {used_s:.1f} s of processor time", flush=True)
        return bounds_s


class _Testing:
    """One mutant in one tree, stage by stage."""

    def __init__(
        self,
        tree: Tree,
        mutant: Mutant,
        source: bytes,
        stages: list[tuple[str, ...]],
        bounds_s: list[tuple[float, float]],
    ) -> None:
        self._tree = tree
        self._mutant = mutant
        self._source = source
        self._stages = deque(zip(stages, bounds_s, strict=True))
        tree.write(mutant.module, mutant.apply(source))
        self._run = self._next_run()

    def _next_run(self) -> MutantRun:
        stage, (cpu_s, timeout_s) = self._stages.popleft()
        return MutantRun(self._tree, stage, cpu_s, timeout_s)

    def poll(self, source: str, tests: str) -> MutantResult | None:
        ended = self._run.poll()
        if ended is None:
            return None
        outcome, _ = ended
        if outcome is MutantOutcome.SURVIVED and self._stages:
            self._run = self._next_run()
            return None
        self._tree.write(self._mutant.module, self._source)
        failed = _FAILED.search(self._tree.output()) if outcome is MutantOutcome.KILLED else None
        return MutantResult(
            self._mutant.module,
            self._mutant.name,
            self._mutant.change,
            tests,
            outcome.value,
            failed.group(1) if failed else "",
            source,
        )


def digest(tests: list[str]) -> str:
    """Return a digest of the files of tests."""
    found = hashlib.sha256()
    for test in tests:
        path = ROOT / test
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            found.update(file.read_bytes())
    return found.hexdigest()[:DIGITS]


def main() -> int:
    """Run the campaign; return 1 if a mutant survives that is not listed as equivalent."""
    options = arguments()
    modules = options.module or list(PLANS)
    mutants = {module: mutants_of(module, (ROOT / module).read_bytes()) for module in PLANS}
    listed = read_equivalents()
    stale = stale_entries(listed, (mutant for found in mutants.values() for mutant in found))
    if stale:
        print("stale in the list of equivalent mutants:", *stale, sep="\n  ", file=sys.stderr)
        return 1
    if options.list:
        for mutant in (mutant for module in modules for mutant in mutants[module]):
            print(f"{mutant.module}: {mutant.name}: {mutant.change}")
        return 0
    os.nice(options.nice)
    preload()
    results = Results()
    trees: dict[bool, list[Tree]] = {}
    survivors = 0
    for module in modules:
        plan = PLANS[module]
        if plan.interpreted not in trees:
            kind = "interpreted" if plan.interpreted else "compiled"
            folders = [BUILD / f"{kind}{number}" for number in range(options.jobs)]
            trees[plan.interpreted] = [Tree.copy(ROOT, folder, interpreted=plan.interpreted) for folder in folders]
        print(module, flush=True)
        found = ModuleCampaign(module, plan, options, results).run(trees[plan.interpreted])
        counts = Counter(result.outcome for result in found)
        alive = [result for result in found if result.outcome == MutantOutcome.SURVIVED.value]
        new = [result for result in alive if (module, result.mutant) not in listed]
        needless = [result for result in found if result not in alive and (module, result.mutant) in listed]
        survivors += len(new) + len(needless)
        print(
            f"{module}: {len(found)} mutants, {counts['killed']} killed, {counts['hung']} hung, "
            f"{len(alive) - len(new)} equivalent, {len(new)} survive"
        )
        for result in new:
            print(f"  {result.mutant}: {result.change}")
        for result in needless:
            print(f"  listed as equivalent, but {result.outcome}: {result.mutant}")
    return 1 if survivors else 0


def arguments() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="scripts/mutate")
    parser.add_argument("module", nargs="*", choices=[[], *PLANS])
    parser.add_argument("--only", default="")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--nice", type=int, default=10)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
