"""A transform bound to a version of a table: whether the table matches, and what holds for all results.

A column that a transform left out counts as hidden, the bitmaps of unchanged columns follow the columns, and rows have
the declared columns, so none of this depends on code of an application.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tidemark.engine.pool.batch import META_NAMES, Batch
from tidemark.engine.selection import matches
from tidemark.model.change import AFTER, BEFORE
from tidemark.model.errors import OF_APPLICATION, TidemarkError
from tidemark.transforms.transform import (
    BadTransform,
    BatchStep,
    BoundTransform,
    TableShape,
    Transform,
    TransformFailed,
    TransformRaised,
)
from tidemark.transforms.unchanged import FormerIndexes, select_unchanged


def bind(transform: Transform, shape: TableShape) -> BoundTransform | None:
    """Return a transform for a version of a table; None if the table does not match.

    Raise `BadTransform`, or `TransformFailed` if its code raises another error.
    """
    tables = (transform.tables,) if isinstance(transform.tables, str) else transform.tables
    if not matches(shape.table, tables):
        return None
    if transform.has_column is not None and transform.has_column not in shape.names:
        return None
    if shape.is_flat:
        raise BadTransform(
            f"{transform}: the rows of {shape.table} are flat", hint="write Flatten as the last transform"
        )
    try:
        bound = transform.bind(shape)
    except TidemarkError:
        raise
    except OF_APPLICATION as error:
        raise TransformFailed(f"{transform} raised {type(error).__name__} on {shape.table}") from error
    if bound is None:
        return None
    if not isinstance(bound, BoundTransform):
        raise BadTransform(
            f"{transform}: bind returned {type(bound).__name__} for {shape.table}, not a BoundTransform or None"
        )
    if not isinstance(bound.shape, TableShape) or not callable(bound.step):
        raise BadTransform(
            f"{transform}: bind returned a BoundTransform of {type(bound.shape).__name__} and "
            f"{type(bound.step).__name__} for {shape.table}, not of a TableShape and a function"
        )
    if fault := next(_faults(bound.shape, shape), None):
        raise BadTransform(f"{transform}: {fault}")
    lost = {*shape.numbers.values()} - {*bound.shape.numbers.values()}
    changed = replace(bound.shape, hidden=shape.hidden | bound.shape.hidden | lost)
    return BoundTransform(changed, _checked(transform, bound.step, shape, changed))


def _faults(changed: TableShape, shape: TableShape) -> Iterator[str]:
    """Yield what is wrong with the shape that a transform returned for one."""
    names = changed.names
    if twice := [name for at, name in enumerate(names) if name in names[:at]]:
        yield f"{shape.table} would have two columns {twice[0]}"
    if lost := [name for name in changed.key if name not in names]:
        yield f"it returned {shape.table} without {lost[0]}, which is in the key"
    known = {*shape.numbers.values()}
    if unknown := [name for name, number in changed.numbers.items() if name not in names or number not in known]:
        yield f"it returned a number of {shape.table} for {unknown[0]}, which is no column of it"


def _moved(shape: TableShape, changed: TableShape) -> FormerIndexes | None:
    """Return the former index of each column, -1 for a new one; None if all columns remain where they were."""
    at = {shape.numbers.get(name, name): index for index, name in enumerate(shape.names)}
    former = [at.get(changed.numbers.get(name, name), -1) for name in changed.names]
    count = len(shape.names)
    if former == [*range(count), *[-1] * (len(former) - count)]:
        return None
    return np.array(former, dtype=np.int64)


def _checked(transform: Transform, step: BatchStep, shape: TableShape, changed: TableShape) -> BatchStep:
    """Return the step with a check of the batches that it returns. It raises `TransformFailed`."""
    moved, count = _moved(shape, changed), len(shape.names)
    known: tuple[pa.Schema, pa.Schema] | None = None  # the last ones, before and after: mostly all are the same

    def checked(batch: Batch) -> Sequence[Batch]:
        nonlocal known
        try:
            made = step(batch)
        except TidemarkError:
            raise
        except OF_APPLICATION as error:
            raise TransformRaised(f"{transform} raised {type(error).__name__} on rows of {shape.table}") from error
        if not isinstance(made, (tuple, list)) or not all(isinstance(each, Batch) for each in made):
            raise TransformFailed(
                f"{transform}: its step returned {type(made).__name__} for {shape.table}, "
                "not a list or tuple of batches"
            )
        for each in made:
            if not isinstance(each.arrow, pa.RecordBatch):
                raise TransformFailed(
                    f"{transform}: its step returned {type(each.arrow).__name__} as rows of {shape.table}, "
                    "not a RecordBatch"
                )
            schemas = (batch.schema, each.schema)
            if schemas != known:
                if wrong := _wrong_column(*schemas, changed):
                    raise TransformFailed(
                        f"{transform}: its step returned rows of {shape.table} whose {wrong} is not as declared"
                    )
                known = schemas
        return made if moved is None else [select_unchanged(each, moved, count) for each in made]

    return checked


def _wrong_column(before: pa.Schema, after: pa.Schema, changed: TableShape) -> str | None:
    """Return a column of rows that is missing or has another type than declared; None if there is none."""
    declared = {name: before.field(name).type for name in META_NAMES if name in before.names}
    if changed.is_flat:
        declared |= {field.name: field.type for field in changed.columns}
    else:
        declared |= {BEFORE: changed.columns, AFTER: changed.columns}
    found = {field.name: field.type for field in after}
    return next((name for name, kind in declared.items() if name not in found or found[name] != kind), None)
