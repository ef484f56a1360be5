"""The base of all serializers, and what they make of a batch."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tidemark.engine.pool.batch import Batch
from tidemark.model.errors import ExitCode, TidemarkError
from tidemark.model.position import Position
from tidemark.model.relation import Relation

CORRECT_SETTINGS = "correct `settings` of the class of the serializer"  # a hint


class SerializerFailed(TidemarkError):
    """A serializer that cannot serialize a batch, or returned something else."""

    exit_code = ExitCode.CONSUMER_FAILED
    hint = "correct the serializer or the transforms before it; the changes are delivered again after a restart"


class SerializedRecord(NamedTuple):
    """A key and a value; a value of None is a tombstone: the key no longer has a row."""

    key: bytes | None  # None for a table without a primary key
    value: bytes | None
    row: int  # index of the record's change in the batch


@dataclass(frozen=True, slots=True)
class SerializedChange:
    """One record with the table and the position of its change."""

    table: str
    key: bytes | None
    value: bytes | None
    position: Position
    parked_number: int = 0  # of a parked change that is delivered again, outside the order of the stream; 0: not parked


@dataclass(frozen=True, slots=True, eq=False)
class SerializedBatch:
    """The records of a batch, in the order of the stream."""

    batch: Batch  # the batch of which they were made, with its table, positions, epoch
    records: Sequence[SerializedRecord]

    @property
    def table(self) -> str:
        """The name of the batch's table."""
        return self.batch.table

    @property
    def position(self) -> Position:
        """Position of the last change of the batch."""
        return self.batch.position

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[SerializedChange]:
        """Iterate over the records with their positions."""
        positions = self.batch.positions()
        for key, value, row in self.records:
            yield SerializedChange(self.batch.table, key, value, positions[row], self.batch.parked_number)


class Serializer(ABC):
    """Converts batches to records.

    `settings`: values of the configuration that its format needs. `only_computes`: it never waits, for a registry of
    schemas for example, so that no more threads run it at once than there are CPUs.
    """

    settings: Mapping[str, Mapping[str, object]] = {}
    only_computes: bool = False

    @abstractmethod
    def records(self, batch: Batch, now_ns: int) -> Sequence[SerializedRecord]:
        """Return the records of a batch; `now_ns`: the current time, since 1970-01-01 UTC. From several threads."""

    def serialized(self, batch: Batch, now_ns: int) -> SerializedBatch:
        """Return a batch with its records. Raise `SerializerFailed`."""
        found: object = self.records(batch, now_ns)
        if not isinstance(found, Sequence) or isinstance(found, str | bytes):
            raise SerializerFailed(
                f"{type(self).__name__} returned {type(found).__name__} for {batch.table}, "
                "not a sequence of SerializedRecord"
            )
        if isinstance(found, list | tuple) and (fault := _fault(found, len(batch))):
            raise SerializerFailed(f"{type(self).__name__} returned for {batch.table} {fault}")
        return SerializedBatch(batch, found)


def _fault(records: Sequence[object], row_count: int) -> str | None:
    """Return what is wrong with records, without their values; None: nothing."""
    for record in records:
        if not isinstance(record, SerializedRecord):
            return f"a {type(record).__name__}, not a SerializedRecord"
        if fault := _fault_of_one(*record, row_count):
            return fault
    return None


def _fault_of_one(key: object, value: object, row: object, row_count: int) -> str | None:
    for name, given in (("key", key), ("value", value)):
        if given is not None and not isinstance(given, bytes):
            return f"a {name} of the type {type(given).__name__}, not bytes or None"
    if not isinstance(row, int):
        return f"a row of the type {type(row).__name__}, not int"
    if not 0 <= row < row_count:  # NB: one below 0 would have the position of another change
        return f"a record of the row {row}, and the batch has {row_count}"
    return None


def shown_relation(batch: Batch) -> Relation:
    """Return the description of a batch's rows as they are after transforms, with the name that they have now."""
    namespace, dot, name = batch.table.partition(".")
    if not dot:
        namespace, name = batch.relation.namespace, batch.table
    return replace(batch.relation, namespace=namespace, name=name, columns=batch.columns)
