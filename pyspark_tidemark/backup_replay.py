"""`python -m pyspark_tidemark.backup_replay`: the program behind `cdcctl replay --base-backup`; prints one JSON object.

    BACKUP ARCHIVE CONFIG TABLE AT TO

ARCHIVE: the folder of WAL since the backup's start, or empty: the backup contains it. CONFIG: the configuration with
the options of an object store and of types, or empty. AT: an LSN or a time. TO: a new folder, or a prefix of a bucket.

It is here because it uses the rows of `tidemark.runtime` and the tables of `tidemark.pipeline`.
"""

import os
import sys
from functools import partial
from pathlib import Path

from pyspark_tidemark.backed_up_table import write_backed_up_table
from tidemark.io.backup.backup import open_backup
from tidemark.io.process.config_loading import load_config
from tidemark.model.commit_time import parse_lsn_or_time
from tidemark.model.lsn import format_lsn
from tidemark.model.table_name import TableName
from tidemark.pipeline.replay.program import ReplayReport, exit_at_once, run
from tidemark.pipeline.replay.result_target import result_target
from tidemark.pipeline.storage.stores import open_lake
from tidemark.runtime.seed.backup_reading import wal_of


def replay_from_backup(
    backup: Path, archive: Path | None, config: Path | None, name: str, *, at: str, to: str
) -> ReplayReport:
    """Replay, and return the report."""
    moment = parse_lsn_or_time(at)
    loaded = load_config(config, os.environ)
    open_lake(to, loaded.lake)
    target, types = result_target(to), loaded.types.mapping()
    target.check()
    with open_backup(backup) as opened:
        segments, wanted = wal_of(opened, archive), TableName.parse(name)
        table, rows = write_backed_up_table(opened, segments, wanted, moment, to=target, types=types)
    place = f"{table.found.database}.{table.relation.qualified_name}"
    return {"table": place, "at": at, "from": format_lsn(opened.label.start_lsn), "rows": rows, "to": to}


def _replayed(backup: str, archive: str, config: str, name: str, *places: str) -> ReplayReport:
    at, to = places
    return replay_from_backup(
        Path(backup), Path(archive) if archive else None, Path(config) if config else None, name, at=at, to=to
    )


if __name__ == "__main__":
    exit_at_once(run(partial(_replayed, *sys.argv[1:])))
