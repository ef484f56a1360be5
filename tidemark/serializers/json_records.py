"""JSON as records: Debezium's envelope, and the row alone."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import chain

from tidemark.decode.render.debezium import DebeziumLines
from tidemark.decode.render.flat_json import flat_lines
from tidemark.decode.render.placed_lines import Lines, LineWriter
from tidemark.decode.render.row_keys import key_lines
from tidemark.engine.batch import Batch
from tidemark.model.change import AFTER, ChangeBatch
from tidemark.model.lsn import Oid
from tidemark.serializers.serializer import SerializedRecord, Serializer, SerializerFailed, shown_relation

_DATABASE = Oid(1)  # of a batch here: it has the name of its database
NO_KEY = b"null"


class _JsonRecords(Serializer):
    """Records whose keys and values are lines of JSON."""

    _divides = False  # a change of the key is a delete and a create

    def __init__(self, *, tombstones: bool = True) -> None:
        """`tombstones`: a record without a value follows that of a delete, as Kafka's log compaction needs it."""
        self._tombstones = tombstones

    def records(self, batch: Batch, now_ns: int) -> Sequence[SerializedRecord]:
        """Return the records of a batch. Raise `SerializerFailed` for flat rows."""
        if AFTER not in batch.arrow.schema.names:
            raise SerializerFailed(f"{type(self).__name__}: the rows of {batch.table} are flat: leave out Flatten")
        shown = ChangeBatch(_DATABASE, shown_relation(batch), batch.arrow)
        values = self._values(shown, batch.database, now_ns)
        if values is None:
            return ()
        keys, deletes = key_lines(shown, divides=self._divides)
        counts = {variant: _line_count(pieces) for variant, pieces in values.pieces.items()}
        texts, key_texts = iter(_texts(values)), iter(_texts(keys))
        found: list[SerializedRecord] = []
        for row, (variant, deleted) in enumerate(zip(values.variants.tolist(), deletes.tolist(), strict=True)):
            for number in range(counts[variant]):
                key = next(key_texts)
                own = None if key == NO_KEY else key
                found.append(SerializedRecord(own, next(texts), row))
                if self._tombstones and deleted and number == 0 and own is not None:
                    found.append(SerializedRecord(own, None, row))
        return found

    @abstractmethod
    def _values(self, shown: ChangeBatch, database: str, now_ns: int) -> Lines | None:
        """Return the values as lines; None if there are none."""


class DebeziumJson(_JsonRecords):
    """Debezium's envelope without schemas, as `cdcctl decode --format debezium` prints it, and its keys.

    An update that changes the key is a delete and a create.
    """

    _divides = True
    settings: Mapping[str, Mapping[str, object]] = {"types": {"decimals": "string"}}

    def __init__(self, *, name: str = "tidemark", tombstones: bool = True) -> None:
        """`name`: of `source.name`, the prefix of topics in Debezium."""
        super().__init__(tombstones=tombstones)
        self._name = name
        self._version = version("tidemark")

    def _values(self, shown: ChangeBatch, database: str, now_ns: int) -> Lines | None:
        lines = DebeziumLines({_DATABASE: database}, version=self._version, now_ns=lambda: now_ns, name=self._name)
        return lines.of_batch(shown)


class FlatJson(_JsonRecords):
    """The row alone: its columns, then `__op` and `__deleted`; of a deleted row what is known.

    Unchanged values that are not in WAL are left out. The forms of values are those of `cdcctl decode --format jsonl`.
    """

    def _values(self, shown: ChangeBatch, database: str, now_ns: int) -> Lines | None:
        del database, now_ns
        return flat_lines(shown)


def _line_count(pieces: Sequence[object]) -> int:
    return sum(1 for piece in pieces if isinstance(piece, bytes) and piece.endswith(b"\n"))


def _texts(lines: Lines) -> list[bytes]:
    """Return the lines without their newlines: JSON has none inside."""
    return list(chain.from_iterable(bytes(block).splitlines() for block in LineWriter().blocks([lines])))
