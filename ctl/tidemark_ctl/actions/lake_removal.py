"""`cdcctl lake remove`: asks a separate program, so that `cdcctl` needs no library for Delta tables."""

from collections.abc import Collection, Mapping
from pathlib import Path

import click

from tidemark.model.errors import ConfigError
from tidemark.model.table_name import TableName
from tidemark_ctl.actions.lake_report import lake_report
from tidemark_ctl.requests.confirmation import confirm
from tidemark_ctl.requests.report_program import report_of
from tidemark_ctl.views.lake_tables import DROPPED, list_tree
from tidemark_ctl.views.render import Tree, show

PROGRAM = "tidemark.pipeline.driver.table_removal"
UNCERTAIN = "check that the source has no such table, unlogged or under another name"
AT_ONCE = 1000  # tables that are arguments of the program


class NothingToRemove(ConfigError):
    """No dropped table has one of the given names."""

    hint = "name a dropped table as `cdcctl lake list` prints it: schema.table, database.schema.table, or its folder"


def remove(
    lake: str,
    state: Path,
    config: Path | None,
    *,
    reader: str,
    tables: tuple[str, ...],
    every: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Run the command."""
    if bool(tables) == every:
        raise click.UsageError("name tables, or give --all")
    listed, _ = lake_report("list", lake, config)
    found = listed["tables"]
    assert isinstance(found, list)
    dropped = [table for table in found if isinstance(table, Mapping) and table["state"] == DROPPED]
    chosen = [table for table in dropped if (table["dropped_at"] if every else _is_named(table, tables))]
    if not chosen:
        raise NothingToRemove(
            f"{lake} has no such dropped table" if tables else f"{lake} has no dropped table with a known time"
        )
    for line in _lines(chosen):
        click.echo(line, err=True)
    if uncertain := sum(not table["dropped_at"] for table in chosen):
        click.echo(f"{uncertain} of them without a known time of the DROP: {UNCERTAIN}", err=True)
    count = "this table with its" if len(chosen) == 1 else f"these {len(chosen)} tables with their"
    confirm(f"Remove {count} data?", yes=yes)
    removed: list[Tree] = []
    kept: dict[str, Tree] = {}
    for first in range(0, len(chosen), AT_ONCE):
        places = [str(state), lake, str(config or ""), reader]
        some = chosen[first : first + AT_ONCE]
        report = report_of(PROGRAM, *places, *(str(table[key]) for table in some for key in ("folder", "position")))
        assert isinstance(report["removed"], list)
        assert isinstance(report["kept"], Mapping)
        removed += report["removed"]
        kept.update(report["kept"])
    show({"lake": lake, "removed": removed, "kept": kept}, as_json=as_json)


def _is_named(table: Mapping[str, Tree], names: Collection[str]) -> bool:
    name = TableName.parse(str(table["name"]))
    unquoted = (table["table"], f"{table['database']}.{table['table']}")
    own = (table["folder"], str(name), str(TableName(name.schema, name.table)), *unquoted)
    return any(given.strip("/") in own for given in names)


def _lines(tables: list[Mapping[str, Tree]]) -> list[str]:
    lines = list_tree({"tables": tables})["tables"]
    assert isinstance(lines, list)
    return [str(line) for line in lines]
