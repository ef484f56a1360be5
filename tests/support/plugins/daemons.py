"""Daemons whose configuration names plug-ins."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from tests.support.processes.captures import Sidecar


class FileRow(NamedTuple):
    """A change in the file of the example's consumer."""

    op: str
    place: tuple[int, int, int]
    epoch: tuple[int, int]
    after: str | None
    before: str | None


def use_config(text: str, *daemons: Sidecar) -> None:
    """Let daemons start with a configuration file."""
    for daemon in daemons:
        path = daemon.folder.root.parent / f"{daemon.role}.toml"
        path.write_text(text)
        daemon.program = ("-m", daemon.module, "--config", str(path))


def file_rows(file: Path, table: str = "public.account") -> list[FileRow]:
    """Return the changes of a table in the file of the example's consumer, as they were written."""
    with closing(
        sqlite3.connect(file)
    ) as database:  # left open, it would go on reading a WAL that a daemon has deleted
        if not database.execute("SELECT count(*) FROM sqlite_master WHERE name = 'changes'").fetchone()[0]:
            return []
        found = database.execute(
            "SELECT op, timeline, commit_lsn, ordinal, epoch_timeline, epoch, after, before FROM changes "
            'WHERE "table" = ? ORDER BY rowid',
            (table,),
        ).fetchall()
    return [
        FileRow(op, (timeline, lsn, ordinal), (epoch_timeline, epoch), after, before)
        for op, timeline, lsn, ordinal, epoch_timeline, epoch, after, before in found
    ]
