"""The transforms of an engine, bound to each version of a table when it is first seen.

A version that they do not fit is refused before one of its rows is delivered. So is a version in which a column that
was masked or dropped is visible under another name: by the column's number, a rename is recognised also where a pattern
names the column.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa

from tidemark.engine.pool.batch import Batch
from tidemark.model.relation import Align, Column, Relation
from tidemark.transforms.binding import bind
from tidemark.transforms.identity import joined_identity
from tidemark.transforms.transform import BadTransform, BatchStep, TableShape, Transform

ADDED_FROM = 1 << 16  # numbers of columns that a transform added: above those of all tables
PLANS_MAX = 4096  # versions of tables; an older one is bound again when it is needed


@dataclass(frozen=True, slots=True)
class TransformPlan:
    """What happens to the batches of a version of a table."""

    shape: TableShape
    steps: tuple[BatchStep, ...]
    columns: tuple[Column, ...]  # of the rows, described as far as they are those of the source
    identity: str = ""  # of the transforms that match the table, in their order; "": none does

    def apply(self, batch: Batch) -> Sequence[Batch]:
        """Return the batches that a batch becomes; the batch itself if no transform matches."""
        if not self.steps:
            return (batch,)
        batches: Sequence[Batch] = (batch,)
        for step in self.steps:
            batches = tuple(chain.from_iterable(step(each) for each in batches))
        return tuple(each.with_columns(self.shape.key, self.columns) for each in batches)


class TransformPlans:
    """Plans by version of a table. Not thread-safe: the application thread binds."""

    def __init__(self, transforms: Sequence[Transform], columns_of: Callable[[Relation], pa.StructType]) -> None:
        """`columns_of`: the Arrow types of a version of a table."""
        # NB: all definitions at the start, because a function may fill what its closure has.
        self._transforms = [(transform, transform.definition) for transform in transforms]
        self._columns_of = columns_of
        self._named: dict[tuple[int, str], bool] = {}  # by the index of a transform, and a pattern of its arguments
        self._plans: OrderedDict[tuple[str, Relation], TransformPlan] = OrderedDict()

    def unmatched(self) -> list[tuple[Transform, str]]:
        """Return the patterns of transforms that none of the versions planned so far has; [] before the first."""
        return [(self._transforms[index][0], pattern) for (index, pattern), found in self._named.items() if not found]

    def plan(self, database: str, relation: Relation) -> TransformPlan:
        """Return the plan of a version. Raise `BadTransform` if a transform does not fit it."""
        found = self._plans.get((database, relation))
        if found is None:
            found = self._plans[database, relation] = self._bind(database, relation)
            if len(self._plans) > PLANS_MAX:
                self._plans.popitem(last=False)
        return found

    def check_change(self, database: str, before: Relation, after: Relation) -> None:
        """Check a new version of a table. Raise `BadTransform`."""
        new = self.plan(database, after)
        try:
            hidden = self.plan(database, before).shape.hidden
        except BadTransform:  # the list of transforms was corrected for the new version
            return
        shown = hidden - new.shape.hidden
        for column in after.live_columns:
            if column.number in shown:
                old = next(each.name for each in before.columns if each.number == column.number)
                raise BadTransform(
                    f"the column {old} of {before.qualified_name}, which is masked or dropped, is now "
                    f"{column.name} of {after.qualified_name}, which no transform matches",
                    hint=f'name both in the transform: "{after.qualified_name}.{old}|{column.name}"; '
                    "no row of the new version was delivered",
                )

    def _bind(self, database: str, relation: Relation) -> TransformPlan:
        shape = TableShape.of(database, relation, self._columns_of(relation))
        steps: list[BatchStep] = []
        identities: list[str] = []
        for index, (transform, definition) in enumerate(self._transforms):
            self._note_names(index, transform, shape)
            bound = bind(transform, shape)
            if bound is not None:
                shape = bound.shape
                steps.append(bound.step)
                identities.append(definition)
        columns = _described(shape, self._columns_of(relation))
        return TransformPlan(shape, tuple(steps), columns, joined_identity(identities))

    def _note_names(self, index: int, transform: Transform, shape: TableShape) -> None:
        applies = transform.has_column is None or transform.has_column in shape.names
        for pattern, is_there in transform.named(shape).items():
            self._named[index, pattern] = (applies and is_there) or self._named.get((index, pattern), False)


def _described(shape: TableShape, source: pa.StructType) -> tuple[Column, ...]:
    """Return the columns of the source by their present names; one with other values or of another type has no type."""
    known = {column.number: (column, field) for column, field in zip(shape.relation.live_columns, source, strict=True)}
    described: list[Column] = []
    for at, field in enumerate(shape.columns):
        number = shape.numbers.get(field.name)
        if number is None:
            described.append(Column(ADDED_FROM + at, field.name, None, -1, -1, by_value=False, align=Align.CHAR))
            continue
        column, before = known[number]
        is_same = number not in shape.hidden and before.type == field.type
        shown = column if is_same else replace(column, type=None, missing=None)
        described.append(replace(shown, name=field.name))
    return tuple(described)
