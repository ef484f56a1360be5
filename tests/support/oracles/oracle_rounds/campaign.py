"""Random sessions compared with test_decoding, round after round, for a given time.

python -m tests.support.oracles.oracle_rounds.campaign [--major 15] [--seconds 60] [--seed 1] [--round N]
    [--replay FOLDER]

Each round has a separate cluster. Seed and number determine its settings and the statements of each session, one
transaction after the other; the server determines how they interleave. So a failed round is kept, including its WAL:
its decoding can be repeated exactly.

The server's own decoder sometimes fails on catalogs that are rewritten while transactions abort: such a round has
a separate outcome, the lines before the failure are compared, and the campaign continues. Any other failure ends it.

Exit code: 0; 1, a round failed because of our code; 2, the server failed in every round, so none was fully compared.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from tests.support.oracles.oracle_rounds.plan import planned
from tests.support.oracles.oracle_rounds.replay import replay
from tests.support.oracles.oracle_rounds.round import RoundOutcome, RoundVerdict, run_round
from tests.support.servers.servers import MAJORS
from tidemark.model.errors import TidemarkError

LOAD_S = 20.0  # of a round, if there is enough time; starting and comparing are extra
FAILED, NOTHING_PROVEN = 1, 2  # exit codes
KEEP_IN = Path("build") / "oracle"


def verdicts(major: int, seed: int, seconds: float, number: int | None) -> Iterator[RoundVerdict]:
    """Yield the verdicts of rounds until `seconds` are over, or of the requested one."""
    end_s = time.monotonic() + seconds
    for at in count() if number is None else (number,):
        plan = planned(seed, at, major, min(LOAD_S, seconds))
        try:
            verdict = run_round(plan, (KEEP_IN / f"{major}-seed{seed}-round{at}").resolve())
        except BaseException:
            sys.stderr.write(f"oracle: {plan} was broken off; again: {plan.command}\n")
            raise
        yield verdict
        if verdict.is_ours or time.monotonic() >= end_s:
            return


def main() -> int:
    """Run a campaign, or decode a kept round again."""
    parser = argparse.ArgumentParser(prog="scripts/oracle", description=__doc__.partition("\n")[0])
    parser.add_argument("--major", type=int, choices=MAJORS, default=15, help="of PostgreSQL (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60, help="until no round is begun (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of rounds and statements (default: %(default)s)")
    parser.add_argument("--round", type=int, help="this one alone")
    parser.add_argument("--replay", type=Path, metavar="FOLDER", help="decode what a round has kept")
    given = parser.parse_args()
    if given.replay is not None:
        return _replayed(given.replay)
    outcomes = Counter[RoundOutcome]()
    lines = replicas = 0
    is_ours = False
    for verdict in verdicts(given.major, given.seed, given.seconds, given.round):
        sys.stdout.write(f"{verdict}\n")
        sys.stdout.flush()
        outcomes[verdict.outcome] += 1
        lines += verdict.lines
        replicas += verdict.replicas
        is_ours |= verdict.is_ours
    reported = ", ".join(f"{outcome.value}: {times}" for outcome, times in outcomes.items())
    sys.stdout.write(
        f"oracle: PostgreSQL {given.major}, seed {given.seed}: {lines} lines, {replicas} replicas; rounds {reported}\n"
    )
    if is_ours:
        return FAILED
    return 0 if outcomes[RoundOutcome.IDENTICAL] else NOTHING_PROVEN


def _replayed(folder: Path) -> int:
    try:
        replay(folder)
    except (AssertionError, TidemarkError) as error:
        sys.stdout.write(f"oracle: {type(error).__name__}: {error}\n")
        return FAILED
    sys.stdout.write(f"oracle: {folder}: identical\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
