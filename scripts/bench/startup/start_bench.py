"""The cost of short commands: CPU seconds of the whole process, the median of some rounds.

`tests/unit/ctl/test_what_commands_load` checks which packages a command loads; this program measures the seconds.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from scripts.bench.measuring.machine import machine
from tests.unit.ctl.test_what_commands_load import GROUPS, LEAVES, RUNS, CommandRun, new_state
from tidemark.model.errors import ExitCode

CPU_S_MAX = 0.25
DECODER_CPU_S_MAX = 0.5  # with pyarrow, numpy and all types
BIN = Path(sys.executable).parent
# As installed: with byte code, which the first run writes.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@dataclass(frozen=True, slots=True)
class Measured:
    """A command, its exit code, and its bound."""

    command: list[str]
    exit_code: int = ExitCode.SUCCESS
    cpu_s_max: float = CPU_S_MAX

    def run(self) -> float:
        """Run the command to its end; return its CPU seconds."""
        with Path(os.devnull).open("r+b") as nowhere:
            actions = [(os.POSIX_SPAWN_DUP2, nowhere.fileno(), stream) for stream in (0, 1, 2)]
            pid = os.posix_spawn(self.command[0], self.command, ENVIRONMENT, file_actions=actions)
        _, status, used = os.wait4(pid, 0)
        if os.waitstatus_to_exitcode(status) != self.exit_code:
            raise SystemExit(f"{' '.join(self.command)} ended with {os.waitstatus_to_exitcode(status)}")
        return used.ru_utime + used.ru_stime


def commands(states: Path) -> dict[str, Measured]:
    """Return the measured commands, each with a new state in a folder of `states`.

    They run without a server: a command that needs one ends with its error.
    """
    cdcctl = str(BIN / "cdcctl")
    return {
        "cdcctl --help": Measured([cdcctl, "--help"]),
        **{f"cdcctl {group} --help": Measured([cdcctl, group, "--help"]) for group in GROUPS},
        **{f"cdcctl {leaf} --help": Measured([cdcctl, *leaf.split(), "--help"]) for leaf in LEAVES},
        **{
            f"cdcctl {leaf}": Measured(
                [cdcctl, *run.arguments(leaf, new_state(states / leaf.replace(" ", "-")))],
                run.exit_code,
                bound_s(run),
            )
            for leaf, run in RUNS.items()
        },
        "cdcctl-archive --help": Measured([str(BIN / "cdcctl-archive"), "--help"]),
    }


def bound_s(run: CommandRun) -> float:
    """Return the bound of a command, with the program that it starts."""
    return DECODER_CPU_S_MAX if "pyarrow" in run.may_load or run.starts_another else CPU_S_MAX


def main() -> int:
    """Measure in alternating trials and print; return 1 if a median exceeds the bound."""
    parser = argparse.ArgumentParser(prog="scripts/bench/start", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    on = machine()
    with tempfile.TemporaryDirectory() as folder:
        measured = commands(Path(folder))
        for command in measured.values():
            command.run()  # warm-up: compiles modules without byte code
        rounds = [{name: command.run() for name, command in measured.items()} for _ in range(given.rounds)]
    found = {name: statistics.median(one[name] for one in rounds) for name in measured}
    if given.json:
        print(json.dumps({"machine": on, "cpu_s": {name: round(cpu_s, 3) for name, cpu_s in found.items()}}))
    else:
        for name, cpu_s in found.items():
            print(f"{name:<32} {cpu_s:6.3f} CPU s, at most {measured[name].cpu_s_max}")
    return int(any(cpu_s > measured[name].cpu_s_max for name, cpu_s in found.items()))


if __name__ == "__main__":
    sys.exit(main())
