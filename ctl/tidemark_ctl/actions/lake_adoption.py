"""`cdcctl lake adopt`: a reader goes back to the position of a lake that was restored as a whole."""

from collections.abc import Mapping
from pathlib import Path

import click

from tidemark.io.readers.adoption import CannotAdopt, adopt
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.locking.write_guard import reporting_stuck_writers
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.position import Sequence
from tidemark.wire.state.values import Identity
from tidemark_ctl.actions.lake_report import lake_report
from tidemark_ctl.requests.confirmation import confirm
from tidemark_ctl.requests.reader_place import naming_readers
from tidemark_ctl.terminal_log import TerminalLog
from tidemark_ctl.views.render import Tree


def adopt_lake(state: Path, *, lake: str, config: Path | None, reader: str, yes: bool) -> None:
    """Run the command."""
    listed, _ = lake_report("list", lake, config)
    folder = StateFolder(state)
    guarded = reporting_stuck_writers(TerminalLog())
    # NB: without its pipeline's lock, a running pipeline could write values that are then written again.
    with RoleLock.acquire(folder, f"pipeline-{reader}"), StateStore.open(folder, guarded=guarded) as store:
        _check_owner(lake, listed, store.identity)
        sequence = listed["sequence"]
        assert isinstance(sequence, int)
        click.echo(f"{lake} contains the changes up to {listed['position']}, value {sequence} of the outbox", err=True)
        for fault in _faults(lake, config):
            click.echo(f"does not match the positions of the lake: {fault}", err=True)
        confirm(f"Let reader {reader} go back to this position?", yes=yes)
        with naming_readers(), store.transaction(None) as transaction:
            adopted = adopt(transaction, reader, Sequence(sequence))
            head = transaction.ledger().head
    click.echo(
        f"reader {reader} continues after value {adopted.applied} of {head}: start its pipeline (cdcctl spark run)"
    )


def _check_owner(lake: str, listed: Mapping[str, Tree], identity: Identity) -> None:
    owner = listed["capture"], listed["system_identifier"]
    if owner != (identity.capture, str(identity.system_identifier)):
        raise CannotAdopt(
            f"{lake} contains the tables of capture {owner[0]!r} of the cluster {owner[1]}, not of "
            f"{identity.capture!r} of {identity.system_identifier}",
            hint="name the lake and the state of one capture",
        )
    if listed["outbox"] != identity.outbox_id:
        raise CannotAdopt(
            f"{lake} was last written from the outbox {listed['outbox']!r}, and this state has {identity.outbox_id!r}",
            hint="the sequences of two outboxes cannot be compared: start the pipeline, which continues by positions",
        )


def _faults(lake: str, config: Path | None) -> list[str]:
    """Return each Delta table that does not match the positions of the lake, with its first fault."""
    checked, _ = lake_report("check", lake, config)
    tables = checked["tables"]
    assert isinstance(tables, list)
    found = [table for table in tables if isinstance(table, Mapping) and table["faults"]]
    return [f"{table['path']}: {_first(table['faults'])}" for table in found]


def _first(faults: Tree) -> str:
    return str(faults[0]) if isinstance(faults, list) and faults else ""
