"""`python -m tidemark.pipeline.replay.program`: the program behind `cdcctl replay`; prints one JSON object.

    LAKE CONFIG TABLE AT TO

CONFIG: the configuration with the options of an object store, or empty. AT: an LSN or a time. TO: a new folder,
or a prefix of a bucket.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType

from tidemark.io.process.config_loading import load_config
from tidemark.io.process.stop_signals import STOP_SIGNALS
from tidemark.model.commit_time import parse_lsn_or_time
from tidemark.model.errors import ExitCode, TidemarkError
from tidemark.pipeline.lake.report import OpenedLake
from tidemark.pipeline.replay.moment import moment_of
from tidemark.pipeline.replay.replaying import replay
from tidemark.pipeline.replay.result_target import result_target
from tidemark.pipeline.storage.stores import open_lake

ReplayReport = dict[str, str | int]


class _Ending:
    """Ends the program by an exception at the first signal: the removal is not interrupted by another one.

    NB: a terminal interrupts both programs, and `cdcctl` then terminates this one. Libraries may replace the exception.
    """

    def __init__(self) -> None:
        self.number = 0
        for number in STOP_SIGNALS:
            signal.signal(number, self._end)

    def _end(self, number: int, _frame: FrameType | None) -> None:
        if not self.number:
            self.number = number
            raise SystemExit


def run(replayed: Callable[[], Mapping[str, object]]) -> int:
    """Replay, and print the report; return the exit status. A signal to end removes what is not complete."""
    ending = _Ending()
    try:
        report = replayed()
    except BaseException as error:
        if ending.number:
            return 128 + ending.number  # a shell's exit code
        if not isinstance(error, TidemarkError):
            raise
        sys.stderr.write(f"cdcctl: {error}\n" + (f"  hint: {error.hint}\n" if error.hint else ""))
        return error.exit_code
    sys.stdout.write(json.dumps(report, ensure_ascii=False) + "\n")
    return ExitCode.SUCCESS


def main(arguments: Sequence[str]) -> int:
    """Replay from the log of a lake."""
    return run(partial(_replayed, *arguments))


def exit_at_once(status: int) -> None:
    """End the process.

    NB: Arrow's threads may still read ahead; destroying its C++ objects meanwhile occasionally ends in SIGABRT.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _replayed(root: str, config: str, name: str, at: str, to: str) -> ReplayReport:
    moment = moment_of(parse_lsn_or_time(at))
    loaded = load_config(Path(config) if config else None, os.environ).lake
    open_lake(root, loaded)
    lake = OpenedLake(root)
    table = lake.find(name)
    open_lake(to, loaded)
    done = replay(lake, table, moment, result_target(to), loaded.settings_of(table.qualified_name).merge_rows)
    return {"table": table.qualified_name, "at": str(moment), "from": str(done.base), "rows": done.rows, "to": to}


if __name__ == "__main__":
    exit_at_once(main(sys.argv[1:]))
