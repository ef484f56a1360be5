"""`cdcctl tail`: the changes of a running node, with nothing of ours installed or configured there before."""

import sys

import click

from ctl.narration import Narrator
from ctl.options import LSN
from ctl.printing import FORMATS, Databases, Format, Printer, printer
from tidemark.decode.codecs.codec import Dialect
from tidemark.decode.transactions import CommittedTransaction
from tidemark.engine.selection import Selection
from tidemark.model.lsn import Lsn, format_lsn
from tidemark.runtime.decode_run import LiveChanges
from tidemark.runtime.seeding import WAIT_S_DEFAULT, take_seed

READ_WAIT_S = 0.2


@click.command()
@click.argument("dsn")
@click.option("--format", "form", type=click.Choice(FORMATS), default="jsonl", show_default=True)
@click.option("--database", "databases", multiple=True, help="Follow these databases (default: the DSN's own).")
@click.option("--table", "tables", multiple=True, default=("*.*",), help="Schema and table, * matches any.")
@click.option("--until", type=LSN, help="Stop before the first transaction that commits at or after this LSN.")
@click.option("--wait-s", type=float, default=WAIT_S_DEFAULT, show_default=True, help="Wait for older transactions.")
def tail(
    *, dsn: str, form: str, databases: tuple[str, ...], tables: tuple[str, ...], until: Lsn | None, wait_s: float
) -> None:
    """Print the changes of the node at DSN as they commit, until interrupted.

    Needs a role with LOGIN and REPLICATION, and a pg_hba line for physical replication. Nothing is written to the node
    but one empty message. A password belongs into PGPASSFILE, never into DSN.
    """
    narrator = Narrator()
    seed = take_seed(dsn, databases, wait_s=wait_s, observer=narrator)
    shown = printer(
        Format(form),
        Databases(
            seed.node.major,
            {oid: Dialect.of(mirror.encoding, seed.node.major) for oid, mirror in seed.mirrors.items()},
            seed.databases,
        ),
        sys.stdout.buffer,
        Selection(tables=tables).selects,
    )
    names = ", ".join(seed.databases.values())
    with LiveChanges(dsn, seed, wait_s=wait_s, observer=narrator) as changes:
        click.echo(f"following {names} from {format_lsn(seed.lsn)}", err=True)
        _follow(changes, shown, until)
    shown.flush()
    if form == Format.NULL.value:
        click.echo(shown.counts.as_dict(changes.decoded_lsn - seed.lsn), err=True)


def _follow(changes: LiveChanges, shown: Printer, until: Lsn | None) -> None:
    told = False
    while until is None or changes.snapshot is None or changes.decoded_lsn < until:
        if not told and changes.snapshot is not None:
            told = True
            click.echo("changes follow from here on", err=True)
        for decoded in changes.read(READ_WAIT_S):
            at = decoded.end.commit_lsn if isinstance(decoded, CommittedTransaction) else decoded.lsn
            if until is None or at < until:
                shown.take(decoded, changes.decoding.decoder.restart_lsn)
        shown.flush()
