"""PostgreSQL's own regression and isolation tests, file by file, compared with the server's own decoder.

python -m tests.support.workloads.regression_sql.campaign [--suite NAME] [--only NAME,NAME] [--output FOLDER]

The results of the tests do not matter here, only their WAL. After each file our lines are compared with those of
test_decoding, and the mirror with the catalogs: a difference names the file that caused it.

Exit code: 0; 1, a difference, or our decoder ended by itself; 2, nothing was compared.
"""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.oracles.oracle import Oracle, ServerCannotDecode, assert_same_lines, without_other_values
from tests.support.oracles.oracle_rounds.round import RoundOutcome, follow
from tests.support.servers.postgres import Cluster, new_cluster
from tests.support.workloads.regression_sql.parts import FIRST, Part, parts_of
from tests.support.workloads.regression_sql.source import SourcePackage, source
from tidemark.model.errors import TidemarkError

MAJOR = 15
SETTINGS = {
    "autovacuum_naptime": "5s",
    "max_connections": "60",
    "max_prepared_transactions": "20",
    "max_replication_slots": "20",
    "wal_keep_size": "2GB",
}
FOLLOW_S = 0.2
FAILED, NOTHING_PROVEN = 1, 2  # exit codes
# Types defined by the tests, whose values only their own C code can print.
FOREIGN_TYPES = ("city_budget", "int42", "text_w_default", "widget")
_FOREIGN_VALUE = re.compile(rf"\[({'|'.join(FOREIGN_TYPES)})((?:\[\])?\]):(?:'(?:[^']|'')*')")


@dataclass(frozen=True, slots=True)
class RegressionResult:
    """The outcome of a file."""

    part: Part
    outcome: RoundOutcome
    lines: int
    transactions: int
    reported: str = ""

    @property
    def is_ours(self) -> bool:
        return self.outcome in (RoundOutcome.DIFFERENT, RoundOutcome.WE_CANNOT_DECODE)

    def __str__(self) -> str:
        counts = f"{self.part.name}: {self.outcome.value}, {self.lines} lines of {self.transactions} transactions"
        return f"{counts}\n{self.reported}" if self.reported else counts


@dataclass
class Suite:
    """One suite in a separate database."""

    node: Cluster
    made: SourcePackage
    database: str
    stack: ExitStack
    oracle: Oracle = field(init=False)

    def __post_init__(self) -> None:
        self.node.sql(f"CREATE DATABASE {self.database} TEMPLATE template0")
        self._begin()

    def _begin(self) -> None:
        self.oracle = self.stack.enter_context(Oracle(self.node, self.database))

    def compare(self, part: Part, output: Path | None) -> RegressionResult:
        """Run a file and compare its WAL."""
        try:
            with ThreadPoolExecutor(1) as pool:
                running = pool.submit(part.run, self.node, self.made, self.database)
                while not running.done():  # NB: a walsender disconnects a client that does not answer
                    follow(self.oracle.ours, FOLLOW_S)
            if output is not None:
                (output / f"{part.path.stem}.out").write_text(running.result())
            lines = self.oracle.check(part.name, without_foreign_values)
        except ServerCannotDecode as error:
            return self._behind_server_failure(part, error)
        except TidemarkError as error:
            self._renew()
            return RegressionResult(part, RoundOutcome.WE_CANNOT_DECODE, 0, 0, f"{type(error).__name__}: {error}")
        except AssertionError as error:
            return RegressionResult(part, RoundOutcome.DIFFERENT, 0, 0, str(error))
        return RegressionResult(part, RoundOutcome.IDENTICAL, len(lines), _transactions(lines))

    def _behind_server_failure(self, part: Part, error: ServerCannotDecode) -> RegressionResult:
        """Compare the server's output before its failure, and begin again after it."""
        found = self.oracle.ours.new_lines(self.database)[: len(error.lines)]
        reported, outcome = str(error), RoundOutcome.SERVER_CANNOT_DECODE
        try:
            assert_same_lines(
                part.name, list(map(without_foreign_values, error.lines)), list(map(without_foreign_values, found))
            )
        except AssertionError as different:
            reported, outcome = str(different), RoundOutcome.DIFFERENT
        self._renew()
        return RegressionResult(part, outcome, len(error.lines), _transactions(error.lines), reported)

    def _renew(self) -> None:
        self.stack.close()
        self._begin()


def without_foreign_values(line: str) -> str:
    """Leave out the values that are on the closed list."""
    return _FOREIGN_VALUE.sub(r"[\1\2:other", without_other_values(line))


def _transactions(lines: Sequence[str]) -> int:
    return sum(line.startswith("BEGIN ") for line in lines)


def compared(suites: Sequence[str], only: Sequence[str], output: Path | None) -> Iterator[RegressionResult]:
    """Run the files of suites, one after the other; with `only`, those files and the ones that they need."""
    made = source()
    parts = parts_of(made)
    for name in suites:
        folder = output / name if output is not None else None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        with new_cluster(MAJOR, SETTINGS) as node, ExitStack() as stack:
            node.run(Path("/usr/bin/mkdir"), "-p", str(node.folder / "tests" / "results"))  # by the server's user
            suite = Suite(node, made, f"{name}_tests", stack)
            for part in parts[name]:
                if not only or part.path.stem in (*only, FIRST):
                    yield suite.compare(part, folder)


def main() -> int:
    """Run the requested files; print a line a file and a summary."""
    suites = ("regress", "isolation", "test_decoding")
    parser = argparse.ArgumentParser(prog="scripts/regression_sql", description=__doc__.partition("\n")[0])
    parser.add_argument("--suite", choices=suites, action="append", help="this one; may be given several times")
    parser.add_argument("--only", default="", metavar="NAME,NAME", help="these files, in the order of the schedule")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="keep there what the tests print")
    given = parser.parse_args()
    outcomes = Counter[RoundOutcome]()
    lines = transactions = 0
    is_ours = False
    only = [name for name in given.only.split(",") if name]
    for each in compared(given.suite or suites, only, given.output):
        sys.stdout.write(f"{each}\n")
        sys.stdout.flush()
        outcomes[each.outcome] += 1
        lines += each.lines
        transactions += each.transactions
        is_ours |= each.is_ours
    reported = ", ".join(f"{outcome.value}: {files}" for outcome, files in outcomes.items())
    counts = f"{outcomes.total()} files, {transactions} transactions, {lines} lines"
    sys.stdout.write(f"regression_sql: {counts}; files {reported or 'none'}\n")
    if is_ours:
        return FAILED
    return 0 if outcomes[RoundOutcome.IDENTICAL] else NOTHING_PROVEN


if __name__ == "__main__":
    sys.exit(main())
