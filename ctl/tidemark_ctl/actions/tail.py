"""`cdcctl tail`: the changes of a running node as they commit."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import click

from tidemark.engine.selection import Selection
from tidemark.io.node.node_errors import WalRemoved
from tidemark.io.node.replication import WalStream
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import Lsn, format_lsn
from tidemark.runtime.first_copy.capture_notices import table_versions
from tidemark.runtime.replay.decode_run import MEMORY_BYTES_DEFAULT
from tidemark.runtime.replay.diverged import DeadBranchDelivered
from tidemark.runtime.replay.history_start import LsnRange, begin_from_history
from tidemark.runtime.seed.live_changes import LiveChanges
from tidemark.runtime.seed.seeding import REMOVED_ATTEMPTS_MAX, Seed, read_seed
from tidemark.runtime.seed.steady_stream import SteadyStream
from tidemark.wire.state.values import Identity
from tidemark_ctl import settings
from tidemark_ctl.output.command_spill import spill_of_command
from tidemark_ctl.output.formats import Format
from tidemark_ctl.output.printing import (
    PrintContext,
    Printer,
    check_applies,
    printer,
    report_damaged_base,
    select_printed_rows,
)
from tidemark_ctl.output.seed_progress import BEFORE_FROM, SeedProgress

READ_WAIT_S = 0.2
FELL_BEHIND_HINT = (
    "tail, or the program that reads its output, fell behind the node: raise wal_keep_size on the node, or "
    "select fewer tables; with a state folder and an archive, cdcctl decode prints the missing changes"
)
LEFT_HINT = (
    "changes that were printed from there on are not in the node: undo what they caused, then run the command again"
)
PrinterFor = Callable[[PrintContext], Printer]
CountsByName = Mapping[str, int | float]


def tail(
    *,
    dsn: str | None,
    state: Path | None,
    config: Path | None,
    from_lsn: Lsn | None,
    until: Lsn | None,
    form: str,
    databases: tuple[str, ...],
    tables: tuple[str, ...],
    partition_roots: tuple[str, ...],
    origins: tuple[str, ...],
    messages: tuple[str, ...],
    counting: bool,
    wait_s: float,
) -> None:
    """Run the command."""
    requested = LsnRange(from_lsn, until)
    selection = Selection(tables=tables, partition_roots=partition_roots, exclude_origins=origins, messages=messages)
    check_applies(Format(form), selection, counting=counting)

    def printer_for(about: PrintContext) -> Printer:
        return printer(Format(form), about, sys.stdout.buffer, selection, counting=counting)

    if state is not None:
        if databases:
            raise ConfigError("--database cannot be combined with --state", hint="a state folder defines its databases")
        node = dsn or settings.load(state, config).capture.dsn
        with _on_one_branch(f"{LEFT_HINT}; if the daemons of the state delivered them too, see `cdcctl rewind`"):
            counts = _tail_from_state(node, StateFolder(state), requested, printer_for)
    elif dsn is None or from_lsn is not None:
        raise ConfigError(
            "--from requires --state" if from_lsn is not None else "no node is named",
            hint="give a DSN to print changes from now on, or --state to start at any LSN of its catalog history",
        )
    else:
        with _on_one_branch(LEFT_HINT):
            counts = _tail_from_now(
                dsn, databases, selection, requested=requested, wait_s=wait_s, printer_for=printer_for
            )
    if form == Format.NULL.value:
        for name, value in counts.items():
            click.echo(f"{name} {value}", err=True)


@contextmanager
def _on_one_branch(hint: str) -> Iterator[None]:
    """Give the error of a node that left the printed branch a hint for this command, which has delivered nothing."""
    try:
        yield
    except DeadBranchDelivered as error:
        raise DeadBranchDelivered(str(error), hint=hint) from error


def _tail_from_now(
    dsn: str,
    databases: tuple[str, ...],
    selection: Selection,
    *,
    requested: LsnRange,
    wait_s: float,
    printer_for: PrinterFor,
) -> CountsByName:
    progress = SeedProgress()
    removed = 0
    while True:
        seed = read_seed(dsn, databases, wait_s=wait_s, observer=progress)
        names = seed.mirrors.remember(seed.databases)
        shown = printer_for(PrintContext.of(seed.node.major, seed.mirrors, names))
        with LiveChanges(dsn, seed, wait_s=wait_s, observer=progress, on_disconnect=progress.on_disconnect) as changes:
            select_printed_rows(changes.decoding.decoder, shown)
            click.echo(f"catalogs of {', '.join(seed.databases.values())} seeded at {format_lsn(seed.lsn)}", err=True)
            if not _has_selected(seed, selection):
                click.echo(
                    f"no table matches {', '.join(selection.tables)} at present: the changes of a table that matches "
                    "are printed from its creation on",
                    err=True,
                )
            try:
                print_live(changes, shown, requested)
            except WalRemoved as error:
                removed += 1
                if changes.snapshot is not None or removed == REMOVED_ATTEMPTS_MAX:
                    raise WalRemoved(str(error), hint=FELL_BEHIND_HINT) from error
                progress.repeating(error, removed, REMOVED_ATTEMPTS_MAX)  # nothing has been printed yet
            else:
                return shown.counts.as_dict(changes.decoded_lsn - seed.lsn)


def _has_selected(seed: Seed, selection: Selection) -> bool:
    """Return whether a table of the node is printed."""
    tables = ((database, relation) for database in seed.databases for relation in seed.mirrors[database].relations())
    return any(version.is_selected for version in table_versions(selection, tables, seed.databases).values())


def print_live(changes: LiveChanges, shown: Printer, requested: LsnRange) -> None:
    """Print the commits of the range up to its end."""
    until, is_reported = requested.to_lsn, False
    while until is None or changes.snapshot is None or changes.decoded_lsn < until:
        for decoded in changes.read_runs(READ_WAIT_S):
            part = requested.part_of(decoded)
            if part is not None:
                shown.print_run(part, changes.decoding.decoder.restart_lsn)
        shown.flush()
        if not is_reported and changes.snapshot is not None:
            is_reported = True
            click.echo("changes follow from here on", err=True)


def _tail_from_state(dsn: str, folder: StateFolder, requested: LsnRange, printer_for: PrinterFor) -> CountsByName:
    with StateStore.open(folder, read_only=True) as store:
        view = store.view()
    if requested.from_lsn is not None:
        _check_is_reached(dsn, view.identity, requested.from_lsn)
    with ExitStack() as stack:
        spill = stack.enter_context(spill_of_command(folder))
        start = begin_from_history(
            view,
            folder.history,
            requested.from_lsn,
            memory_bytes=MEMORY_BYTES_DEFAULT,
            spill=spill,
            passed_over=report_damaged_base,
        )
        shown = printer_for(PrintContext.of(view.identity.server_major, start.mirrors, start.databases, start.types))
        select_printed_rows(start.decoding.decoder, shown)
        identifier = view.identity.system_identifier
        progress = SeedProgress(reading=BEFORE_FROM)
        stream = stack.enter_context(
            SteadyStream(dsn, identifier, start.lsn, start.timeline, on_disconnect=progress.on_disconnect)
        )
        while requested.to_lsn is None or start.decoded_lsn < requested.to_lsn:
            try:
                wal_slice = stream.read(READ_WAIT_S)
            except WalRemoved as error:
                raise WalRemoved(str(error), hint=_removed_hint(start.lsn, requested.from_lsn)) from error
            for decoded in start.decoding.feed_runs(wal_slice) if wal_slice is not None else ():
                part = requested.part_of(decoded)
                if part is not None:
                    shown.print_run(part, start.decoding.decoder.restart_lsn)
            if requested.from_lsn is not None:
                progress.replaying(start.lsn, start.decoded_lsn, requested.from_lsn)
            shown.flush()
    return shown.counts.as_dict(start.decoded_lsn - start.lsn)


def _check_is_reached(dsn: str, of: Identity, from_lsn: Lsn) -> None:
    """Raise `ConfigError` for an LSN that the node is far from, as after a typing error."""
    with closing(WalStream(dsn)) as stream:
        flushed = stream.identify(of.system_identifier).flush_lsn
    if from_lsn > flushed + of.segment_bytes:  # NB: what was inserted there may not be flushed yet
        raise ConfigError(
            f"--from {format_lsn(from_lsn)} is after the end of the node's WAL, which is {format_lsn(flushed)}",
            hint="correct it, or omit it: without --from, the changes begin with the oldest catalogs of the state",
        )


def _removed_hint(start_lsn: Lsn, from_lsn: Lsn | None) -> str:
    """Return what to do if the node does not keep the WAL from the catalogs on that describe it."""
    wanted = "" if from_lsn is None else f" for --from {format_lsn(from_lsn)}"
    return (
        f"reading{wanted} begins at {format_lsn(start_lsn)}, with the catalogs and open transactions of that place: "
        "cdcctl decode reads that WAL in an archive; without one, choose a later --from"
    )
