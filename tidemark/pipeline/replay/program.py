"""`python -m tidemark.pipeline.replay.program`: the program behind `cdcctl replay`; prints one JSON object.

    LAKE CONFIG TABLE AT TO

CONFIG: the configuration with the options of an object store, or empty. AT: an LSN or a time. TO: a new folder.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from tidemark.io.process.config import load_config
from tidemark.model.commit_time import parse_commit_time
from tidemark.model.errors import ExitCode, TidemarkError
from tidemark.model.lsn import parse_lsn
from tidemark.pipeline.lake.report import OpenedLake
from tidemark.pipeline.replay.moment import moment_of
from tidemark.pipeline.replay.replaying import replay
from tidemark.pipeline.storage.stores import open_lake


def main(arguments: Sequence[str]) -> int:
    """Replay, and print where it began and how many rows there are; return the exit status.

    A signal to end removes what is not complete.
    """
    end = _ending_once()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    root, config, name, at, to = arguments
    try:
        moment = moment_of(parse_lsn(at) if "/" in at else parse_commit_time(at))
        loaded = load_config(Path(config) if config else None, os.environ).lake
        open_lake(root, loaded)
        lake = OpenedLake(root)
        table = lake.find(name)
        done = replay(lake, table, moment, Path(to), loaded.settings_of(table.qualified_name).merge_rows)
    except TidemarkError as error:
        sys.stderr.write(f"cdcctl: {error}\n" + (f"  hint: {error.hint}\n" if error.hint else ""))
        return error.exit_code
    report = {"table": table.qualified_name, "at": str(moment), "from": str(done.base), "rows": done.rows, "to": to}
    sys.stdout.write(json.dumps(report, ensure_ascii=False) + "\n")
    return ExitCode.SUCCESS


def _ending_once() -> Callable[[int, FrameType | None], None]:
    """Return a handler that raises at the first signal: the removal is not interrupted by another one.

    NB: a terminal interrupts both programs, and `cdcctl` then terminates this one.
    """
    is_first = iter([True])

    def end(number: int, _frame: FrameType | None) -> None:
        if next(is_first, False):
            raise SystemExit(128 + number)  # a shell's exit code

    return end


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
    except SystemExit as ended:
        status = int(ended.code or 0)
    sys.stdout.flush()
    sys.stderr.flush()
    # NB: Arrow's threads may still read ahead; destroying its C++ objects meanwhile occasionally ends in SIGABRT.
    os._exit(status)
