"""The output of `tail` and `decode`: decoded transactions in one of the formats, onto one binary stream.

    jsonl          one JSON object for each item, in stream order
    debezium       row changes as Debezium's PostgreSQL connector emits them in JSON without a schema
    test_decoding  PostgreSQL's test_decoding with include-xids on, skip-empty-xacts on, timestamps off
    arrow          one Arrow IPC stream for each batch, end to end; every other item is a stream without rows
    null           nothing; decodes all the way to batches and counts them

In `arrow`, each stream's schema carries metadata: `tidemark.database` and `tidemark.relation` for a batch, and
`tidemark.item`, the JSON line, for everything else.
"""

import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import BinaryIO, Protocol, Self

import click
import pyarrow as pa

from tidemark.decode.catalog.databases import DatabaseMirrors, MappedDialects
from tidemark.decode.groups.group_builder import GroupBuilder
from tidemark.decode.render.jsonl import JsonLines
from tidemark.decode.render.test_decoding import TestDecodingRenderer
from tidemark.decode.transactions.decoder import DecodedRun, Decoder
from tidemark.decode.transactions.reorder_buffer.committed_run import CommittedRun
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction
from tidemark.decode.types.codec import without_escapes
from tidemark.engine.selection import Selection
from tidemark.io.state.history_files import DamagedBase
from tidemark.model.change import ChangeBatch, ChangeGroup
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import Lsn, Oid, format_lsn
from tidemark.model.mapping import DEFAULT_MAPPING, TypeMapping
from tidemark.model.relation import Relation
from tidemark_ctl.output.formats import Format


@dataclass(frozen=True, slots=True)
class PrintContext:
    """The data needed to print the changes of a capture's databases."""

    major: int
    dialects: MappedDialects
    names: Mapping[Oid, str]

    @classmethod
    def of(
        cls,
        major: int,
        mirrors: DatabaseMirrors,
        names: Mapping[Oid, str],
        types: TypeMapping = DEFAULT_MAPPING,
    ) -> Self:
        """Return the context for the databases of `mirrors`."""
        return cls(major, MappedDialects(mirrors, types, major), names)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@dataclass(slots=True)
class Counts:
    """The number of decoded items, and the cost; `cpu_s` is the CPU time of this process, all threads."""

    transactions: int = 0
    messages: int = 0
    rows: int = 0
    batches: int = 0
    arrow_bytes: int = 0
    _cpu_at_start_s: float = field(default_factory=_cpu_s)

    def as_dict(self, wal_bytes: int) -> dict[str, int | float]:
        """Return the counts by name."""
        return {
            "transactions": self.transactions,
            "messages": self.messages,
            "rows": self.rows,
            "batches": self.batches,
            "arrow_bytes": self.arrow_bytes,
            "wal_bytes": wal_bytes,
            "cpu_s": round(_cpu_s() - self._cpu_at_start_s, 3),
        }


class Printer(Protocol):
    """Accepts the decoder's output in order."""

    counts: Counts
    prints_names: bool  # relation, type and schema names instead of the OID where a value is one

    def selects(self, relation: Relation) -> bool:
        """Return whether the output depends on the rows of a relation version."""

    def print_run(self, decoded: DecodedRun, restart_lsn: Lsn) -> None:
        """Print one or many transactions, or a message outside a transaction."""

    def flush(self) -> None:
        """Print the collected items: no more input is available at the moment."""


def select_printed_rows(decoder: Decoder, shown: Printer) -> None:
    """Make a decoder keep only the rows that the printer needs."""
    decoder.select_only(shown.selects)
    if shown.prints_names:
        decoder.keep_names()


def check_applies(form: Format, selection: Selection, *, counting: bool) -> None:
    """Refuse options that a format ignores: `test_decoding` prints what the plugin does, with a selection of tables."""
    if form is not Format.TEST_DECODING:
        return
    ignored = {
        "--partition-root": bool(selection.partition_roots),
        "--exclude-origin": bool(selection.exclude_origins),
        "--message": "*" not in selection.messages,
        "--transactions": counting,
    }
    given = [option for option, is_given in ignored.items() if is_given]
    if given:
        raise ConfigError(
            f"--format test_decoding cannot be combined with {', '.join(given)}", hint="choose another format"
        )


def printer(
    form: Format, databases: PrintContext, output: BinaryIO, selection: Selection, *, counting: bool = False
) -> Printer:
    """Return the printer of a format; `counting`: transactions come with their counts."""
    if form is Format.TEST_DECODING:
        return _TestDecodingPrinter(databases, output, selection.selects)
    if form is Format.DEBEZIUM:
        return _debezium_printer(databases, output, selection, counting=counting)
    return _GroupPrinter(databases, selection, _writers(form, databases, output), counting=counting)


class _TestDecodingPrinter:
    """Prints immediately: the plugin's lines do not wait until a batch is full."""

    prints_names = True

    def __init__(self, databases: PrintContext, output: BinaryIO, selected: Callable[[Relation], bool]) -> None:
        self.counts = Counts()
        self.selects = selected
        self._renderer = TestDecodingRenderer(databases.major, databases.dialects, selected=selected)
        self._output = output

    def print_run(self, decoded: DecodedRun, restart_lsn: Lsn) -> None:
        """Print one or many transactions, or a message outside a transaction."""
        del restart_lsn
        if isinstance(decoded, CommittedRun):
            self.counts.transactions += len(decoded)
            self._output.writelines(self._renderer.run(decoded))
        elif isinstance(decoded, CommittedTransaction):
            self.counts.transactions += 1
            self._output.writelines(self._renderer.transaction(decoded))
            decoded.release()
        elif self._renderer.shows(decoded):
            self.counts.messages += 1
            self._output.write(self._renderer.message(decoded))

    def flush(self) -> None:
        """Flush the buffered output."""
        self._output.flush()


class _GroupPrinter:
    """Collects columnar groups and passes each to a writer."""

    prints_names = False

    def __init__(
        self, databases: PrintContext, selection: Selection, write: Callable[[ChangeGroup], None], *, counting: bool
    ) -> None:
        self.counts = Counts()
        self._builder = GroupBuilder(
            databases.dialects,
            selected=selection.selects,
            root_of=selection.root_of,
            excluded=selection.excluded_origins(),
            selects_message=selection.selects_message,
            counting=counting,
        )
        self.selects = self._builder.selects
        self._write = write

    def print_run(self, decoded: DecodedRun, restart_lsn: Lsn) -> None:
        """Collect one or many transactions, or a message outside a transaction; print the groups that are full."""
        if isinstance(decoded, CommittedRun):
            self.counts.transactions += len(decoded)
            full = self._builder.add_run(decoded)
        elif isinstance(decoded, CommittedTransaction):
            self.counts.transactions += 1
            full = self._builder.add_transaction(decoded)
        else:
            self.counts.messages += 1
            full = self._builder.add_message(decoded, restart_lsn)
        for group in full:
            self._print(group)

    def flush(self) -> None:
        """Print the collected groups."""
        group = self._builder.flush()
        if group is not None:
            self._print(group)

    def _print(self, group: ChangeGroup) -> None:
        for item in group.items:
            if isinstance(item, ChangeBatch):
                self.counts.batches += 1
                rows = item.rows
                self.counts.rows += rows.num_rows
                self.counts.arrow_bytes += rows.nbytes
        self._write(group)


def _writers(form: Format, databases: PrintContext, output: BinaryIO) -> Callable[[ChangeGroup], None]:
    lines = JsonLines(databases.names)

    def write_jsonl(group: ChangeGroup) -> None:
        output.writelines(lines.lines(group))
        output.flush()

    def write_arrow(group: ChangeGroup) -> None:
        for item in group.items:
            if isinstance(item, ChangeBatch):
                about = {"tidemark.database": databases.names.get(item.database, str(item.database))}
                about["tidemark.relation"] = without_escapes(item.relation.qualified_name)
                rows = item.rows
                _write_stream(output, rows.schema.with_metadata(about), rows)
            else:
                _write_stream(output, pa.schema([]).with_metadata({"tidemark.item": lines.item(item)}), None)
        output.flush()

    def write_nothing(_group: ChangeGroup) -> None:
        """Discard the group."""

    return {Format.JSONL: write_jsonl, Format.ARROW: write_arrow, Format.NULL: write_nothing}[form]


def _debezium_printer(
    databases: PrintContext, output: BinaryIO, selection: Selection, *, counting: bool
) -> "_GroupPrinter":
    # Loading its imports takes as long as decoding a small file, so other formats do not load them.
    from importlib.metadata import version  # noqa: PLC0415

    from tidemark.decode.render.debezium import DebeziumLines  # noqa: PLC0415
    from tidemark.decode.render.debezium_values import MAPPING  # noqa: PLC0415

    lines = DebeziumLines(databases.names, version=version("tidemark"), now_ns=time.time_ns)

    def write(group: ChangeGroup) -> None:
        output.writelines(lines.lines(group))
        output.flush()

    own = replace(databases, dialects=databases.dialects.mapped(MAPPING))
    return _GroupPrinter(own, selection, write, counting=counting)


def _write_stream(output: BinaryIO, schema: pa.Schema, rows: pa.RecordBatch | None) -> None:
    with pa.ipc.new_stream(output, schema) as stream:
        if rows is not None:
            stream.write_batch(rows.replace_schema_metadata(schema.metadata))


def report_damaged_base(damaged: DamagedBase) -> None:
    """Print which file is damaged, and that an older base replaces it."""
    at = format_lsn(damaged.entry.lsn)
    click.echo(f"the catalog base of {at} is damaged; an older base is used: {damaged.error}", err=True)
