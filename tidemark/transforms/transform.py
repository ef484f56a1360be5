"""The base of all transforms: the description of a table for a transform, and the step for this table that results.

A transform sees the table as the transforms before it left it. Columns keep the number of their source, so that a
column that was masked or dropped, and has another name now, is recognised (`tidemark.transforms.plan`). Which tables
match, and what is checked of a result, is not here: `tidemark.transforms.binding` does it for all transforms.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from inspect import signature
from typing import ClassVar, Concatenate, ParamSpec, Self

import pyarrow as pa

from tidemark.engine.pool.batch import Batch, key_of
from tidemark.engine.selection import matches
from tidemark.model.change import Op, batch_schema
from tidemark.model.errors import ConfigError, Disposition, ExitCode, TidemarkError
from tidemark.model.relation import Relation
from tidemark.transforms.identity import identity_of

EVERY_TABLE = "*.*"
BatchStep = Callable[[Batch], Sequence[Batch]]


class BadTransform(ConfigError):
    """A transform that is invalid, or that does not fit the current version of a table."""

    hint = "correct the list of transforms; nothing was delivered without them"


class TransformFailed(TidemarkError):
    """A transform failed on rows. The message has no value of a row."""

    exit_code = ExitCode.CONSUMER_FAILED
    hint = "change the transform or the rows; the changes are delivered again after a restart"


class TransformRaised(TransformFailed):
    """Code of a transform raised an error on rows, which may be gone at the next attempt.

    NB: the text of its cause may have values of rows.
    """

    disposition = Disposition.RETRY


@dataclass(frozen=True, slots=True)
class TableShape:
    """A version of a table as a transform finds it."""

    database: str
    relation: Relation  # the version in the source
    columns: pa.StructType  # of both sides of a row
    key: tuple[str, ...]  # columns that identify a row, by their current names; () if there are none
    numbers: Mapping[str, int]  # the numbers in the source, by current names
    hidden: frozenset[int] = frozenset()  # numbers of columns that were masked or dropped
    is_flat: bool = False  # the columns of the row are beside the metadata columns

    @classmethod
    def of(cls, database: str, relation: Relation, columns: pa.StructType) -> Self:
        """Return the shape of a version of a table before all transforms."""
        live = zip(columns, relation.live_columns, strict=True)
        numbers = {field.name: column.number for field, column in live}
        return cls(database, relation, columns, key_of(relation), numbers)

    @property
    def table(self) -> str:
        """The table in the source, as `schema.name`."""
        return self.relation.qualified_name

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(field.name for field in self.columns)

    @property
    def schema(self) -> pa.Schema:
        """The schema of `Batch.arrow`, unless it is flat."""
        return batch_schema(self.columns)

    def with_columns(self, fields: Iterable[pa.Field], numbers: Mapping[str, int] | None = None) -> "TableShape":
        """Return the shape with other columns; `numbers` of the source: by default, columns keep theirs by name."""
        columns = pa.struct(list(fields))
        if numbers is None:
            numbers = {field.name: self.numbers[field.name] for field in columns if field.name in self.numbers}
        return replace(self, columns=columns, numbers=numbers)

    def with_hidden(self, names: Iterable[str]) -> "TableShape":
        """Return the shape with columns whose values are hidden: under another name, the table would be refused.

        Raise `BadTransform` for a name that is no column of the shape.
        """
        hidden = set(names)
        if unknown := sorted(hidden - {*self.names}):
            raise BadTransform(f"{self.table} has no column {unknown[0]} that could be hidden")
        return replace(self, hidden=self.hidden | {self.numbers[name] for name in hidden & self.numbers.keys()})


@dataclass(frozen=True, slots=True)
class BoundTransform:
    """A transform for one version of a table."""

    shape: TableShape  # of the batches that the step returns; a column without a number is new, one left out is hidden
    step: Callable[[Batch], Sequence[Batch]]  # called for each batch, from several threads; () leaves its rows out


class Transform(ABC):
    """Changes batches of the tables that it matches; the table is always the one in the source."""

    keeps_tables: ClassVar[bool] = True  # False: its batches have another name, or are flat
    tables: str | Sequence[str] = EVERY_TABLE
    has_column: str | None = None

    def __init_subclass__(cls) -> None:
        """Let the constructor of a subclass note its arguments."""
        super().__init_subclass__()
        if "__init__" in vars(cls):
            cls.__init__ = _noting_arguments(cls.__init__)  # type: ignore[assignment, method-assign]

    def __init__(self, *, tables: str | Sequence[str] | None = None, has_column: str | None = None) -> None:
        """Limit the transform to some tables; None: to those that the attribute of its class names, by default all.

        `tables`: patterns as in `select.tables`. `has_column`: only tables with this column, after earlier transforms.
        """
        chosen = type(self).tables if tables is None else tables
        self.tables = (chosen,) if isinstance(chosen, str) else tuple(chosen)
        self.has_column = type(self).has_column if has_column is None else has_column
        self._given: Mapping[str, object] = {"tables": self.tables, "has_column": self.has_column}

    @property
    def definition(self) -> str:
        """Equal for equal code and equal arguments of the constructor (`tidemark.transforms.identity`)."""
        names = getattr(type(self), "__dataclass_fields__", ())  # of a dataclass, made after `__init_subclass__`
        given = {name: getattr(self, name) for name in names} or vars(self).get("_given", {})
        return identity_of(type(self), given)

    def named(self, shape: TableShape) -> Mapping[str, bool]:
        """Return the patterns that the arguments name tables or columns by, and whether the table has any such.

        A pattern that no captured table has is reported at the start: it may be mistyped. "*.*" needs no table.
        """
        tables = (self.tables,) if isinstance(self.tables, str) else self.tables
        return {pattern: matches(shape.table, (pattern,)) for pattern in tables if pattern != EVERY_TABLE}

    @abstractmethod
    def bind(self, shape: TableShape) -> BoundTransform | None:
        """Return what happens to the batches of a version of a table that matches; None: nothing.

        Called at the start, and before the first row after an ALTER TABLE. Raise `BadTransform` if it does not fit.
        """

    def __str__(self) -> str:
        return type(self).__name__


P = ParamSpec("P")
Constructor = Callable[Concatenate[Transform, P], None]


def _noting_arguments(construct: Constructor[P]) -> Constructor[P]:
    """Return a constructor that notes its arguments; of one that calls another, the first one does."""
    parameters = signature(construct)

    @wraps(construct)
    def noting(self: Transform, /, *positional: P.args, **named: P.kwargs) -> None:
        is_first = "_given" not in vars(self)
        construct(self, *positional, **named)
        if is_first:
            _, *given = parameters.bind(self, *positional, **named).arguments.items()
            self._given = dict(given)

    return noting


def checked_operations(transform: Transform, operations: str) -> frozenset[str]:
    """Return letters of `Op` as a set; `operations` is a string such as "iu", empty for all."""
    known = {op.value for op in Op}
    if unknown := sorted(set(operations) - known):
        raise BadTransform(
            f"{transform}: operations={operations!r}: no operation {', '.join(unknown)}",
            hint="i insert, u update, d delete, c first copy, r rewritten by DDL, s resent",
        )
    return frozenset(operations or known)


def rebuilt(side: pa.StructArray, fields: Sequence[pa.Field], columns: Sequence[pa.Array]) -> pa.StructArray:
    """Return a side with other columns and the same NULLs."""
    struct = pa.struct(list(fields))
    if not fields:
        return pa.array([None if missing else {} for missing in side.is_null().to_pylist()], struct)
    return pa.StructArray.from_arrays(columns, fields=list(fields), mask=side.is_null())


def children(side: pa.StructArray) -> list[pa.Array]:
    """Return the columns of a side, NULL where the side is."""
    return list(side.flatten())
