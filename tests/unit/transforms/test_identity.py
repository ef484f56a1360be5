"""The identity of a transform: equal in each process for equal arguments, and of no secret's text."""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.forged.groups import COLUMNS, relation
from tidemark import Cast, Drop, Filter, Mask, OnBatch, OnRow, Order, Rename, Secret, Transform
from tidemark.engine.batch import Change
from tidemark.transforms.identity import identity_of
from tidemark.transforms.plan import TransformPlans
from tidemark.transforms.transform import Bound, TableShape

KEY = Secret(b"0123456789abcdef")
OTHER_KEY = Secret(b"0123456789abcdeg")


def unchanged(change: Change) -> Change:
    return change


def other(change: Change) -> Change:
    return change


class Own(Transform):
    """A transform of a user, with the constructor of the base."""

    def _bind(self, shape: TableShape) -> Bound | None:
        raise NotImplementedError


class Longer(Mask):
    """A transform that calls the constructor of another one."""

    def __init__(self, column: str, *, more: int) -> None:
        super().__init__(column)
        self.more = more


@dataclass
class Described(Transform):
    """A transform that is a dataclass."""

    suffix: str

    def __post_init__(self) -> None:
        super().__init__()

    def _bind(self, shape: TableShape) -> Bound | None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda: Mask("public.a.b", key=KEY), lambda: Mask("public.a.b", key=OTHER_KEY)),
        (lambda: Mask("public.a.b"), lambda: Mask("public.a.c")),
        (lambda: Mask("public.a.b", constant=1), lambda: Mask("public.a.b", constant="1")),
        (lambda: Filter("id > 1"), lambda: Filter("id > 2")),
        (lambda: Filter("id > 1"), lambda: Filter("id > 1", operations="u")),
        (lambda: Cast("public.a.b", pa.int32()), lambda: Cast("public.a.b", pa.int64())),
        (lambda: Drop("public.a.b"), lambda: Mask("public.a.b")),
        (lambda: OnRow(unchanged), lambda: OnRow(other)),
        (lambda: Own(tables="a.*"), lambda: Own(tables="b.*")),
        (lambda: Longer("a.b", more=1), lambda: Longer("a.b", more=2)),
        (lambda: Longer("a.b", more=1), lambda: Mask("a.b")),
        (lambda: Described("a"), lambda: Described("b")),
    ],
)
def test_transforms_with_other_arguments_have_another_identity(
    first: Callable[[], Transform], second: Callable[[], Transform]
) -> None:
    assert first().definition == first().definition != second().definition == second().definition


def test_how_an_argument_is_given_does_not_count() -> None:
    assert Filter("id > 1").definition == Filter(condition="id > 1").definition
    assert Rename("public.a.b", "c").definition == Rename("public.a.b", to="c").definition


def test_another_process_finds_the_same_identity() -> None:
    made = "Mask('public.a.b', key=Secret(b'0123456789abcdef'), has_column='x').definition"
    program = f"from tidemark import Mask, Secret; print({made})"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    assert found == Mask("public.a.b", key=KEY, has_column="x").definition


def test_arguments_of_any_kind_have_an_identity() -> None:
    def of(value: object) -> str:
        return identity_of(Own, {"value": value})

    assert of({"a", "b", "c"}) == of({"c", "b", "a"}) != of({"a", "b"})
    assert of({"a": Decimal("1.0")}) != of({"a": Decimal("1.00")})
    assert of({(1, 2): 3}) == of({(1, 2): 3})
    assert of(object()) == of(object())
    assert of(b"ab") != of(b"ac")
    assert of(Path("a")) != of(Path("b"))
    assert of(re.compile("a")) != of(re.compile("b"))
    assert of(Order.TOTAL) != of(Order.NONE)


def test_the_identity_of_a_plan_is_that_of_the_transforms_that_match_the_table() -> None:
    def identity(*transforms: Transform) -> str:
        return TransformPlans(transforms, lambda _: COLUMNS).plan("shop", relation()).identity

    mask, hashed = Mask("public.account.note"), Mask("public.account.note", key=KEY)
    other_table = Mask("public.person.*")
    assert identity() == identity(other_table) == ""
    assert identity(mask) == identity(mask, other_table) != identity(hashed)
    filtered = Filter("id > 1")
    assert identity(mask, filtered) != identity(filtered, mask)
    assert identity(OnBatch(len_of)) != ""


def len_of(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows
