"""The cost of short commands: CPU seconds of the whole process, the median of some rounds.

`tests/unit/ctl/test_what_commands_load` checks which packages a command loads; this program measures the seconds.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from scripts.bench.measuring.machine import machine
from tests.unit.ctl.test_what_commands_load import GROUPS, LEAVES, new_state

CPU_S_MAX = 0.25
BIN = Path(sys.executable).parent


def commands(state: Path) -> dict[str, list[str]]:
    """Return the measured commands."""
    cdcctl, place = str(BIN / "cdcctl"), ["--state", str(state)]
    return {
        "cdcctl --help": [cdcctl, "--help"],
        **{f"cdcctl {group} --help": [cdcctl, group, "--help"] for group in GROUPS},
        **{f"cdcctl {leaf} --help": [cdcctl, *leaf.split(), "--help"] for leaf in LEAVES},
        "cdcctl archive status": [cdcctl, "archive", "status", *place],
        "cdcctl reader list": [cdcctl, "reader", "list", *place],
        "cdcctl status": [cdcctl, "status", *place],
        "cdcctl realtime status": [cdcctl, "realtime", "status", *place],
        "cdcctl-archive --help": [str(BIN / "cdcctl-archive"), "--help"],
    }


def run(command: list[str]) -> float:
    """Run a command to its end; return its CPU seconds."""
    with Path(os.devnull).open("wb") as nowhere:
        pid = os.posix_spawn(command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, nowhere.fileno(), 1)])
    _, status, used = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Measure in alternating trials and print; return 1 if a median exceeds the bound."""
    parser = argparse.ArgumentParser(prog="scripts/bench/start", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    on = machine()
    with tempfile.TemporaryDirectory() as folder:
        new_state(Path(folder))
        measured = commands(Path(folder))
        for command in measured.values():
            run(command)  # warm-up: compiles modules without byte code
        rounds = [{name: run(command) for name, command in measured.items()} for _ in range(given.rounds)]
    found = {name: statistics.median(one[name] for one in rounds) for name in measured}
    if given.json:
        print(json.dumps({"machine": on, "cpu_s": {name: round(cpu_s, 3) for name, cpu_s in found.items()}}))
    else:
        for name, cpu_s in found.items():
            print(f"{name:<32} {cpu_s:6.3f} CPU s")
    return int(max(found.values()) > CPU_S_MAX)


if __name__ == "__main__":
    sys.exit(main())
