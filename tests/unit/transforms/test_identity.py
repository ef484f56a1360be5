"""The identity of a transform: equal in each process for equal arguments, and of no secret's text."""

import operator
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support.forged import groups
from tests.support.forged.groups import COLUMNS, relation
from tidemark import Cast, Drop, Filter, Mask, OnBatch, OnRow, Order, Rename, Secret, Transform
from tidemark.engine.pool.batch import Change
from tidemark.transforms.identity import UNKNOWN, identity_of, is_same, joined_identity
from tidemark.transforms.plan import TransformPlans
from tidemark.transforms.transform import BoundTransform, TableShape
from tidemark.transforms.value_description import ValueDescription

KEY = Secret(b"0123456789abcdef")
FACTOR = 10
OTHER_KEY = Secret(b"0123456789abcdeg")


def unchanged(change: Change) -> Change:
    return change


def other(change: Change) -> Change:
    return change


class Own(Transform):
    """A transform of a user, with the constructor of the base."""

    def bind(self, shape: TableShape) -> BoundTransform | None:
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

    def bind(self, shape: TableShape) -> BoundTransform | None:
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
    assert of({(1, 2): 3}) != of({(1, 2): 4})
    assert of({1: "a"}) != of({"1": "a"})
    assert of(object()) == of(object()) != of(Scaled(1))
    assert of(Scaled(1)) == of(Scaled(1)) != of(Scaled(2))
    assert of(np.arange(3)) == of(np.arange(3)) != of(np.arange(4))
    assert of(pa.array([1, 2])) == of(pa.array([1, 2])) != of(pa.array([1, 3]))
    assert of("a" * 9999) != of("a" * 9998)
    assert of(b"ab") != of(b"ac")
    assert of(Path("a")) != of(Path("b"))
    assert of(re.compile("a")) != of(re.compile("b"))
    assert of(Order.TOTAL) != of(Order.NONE)


FUNCTIONS: dict[str, Callable[[], object]] = {
    "a lambda": lambda: lambda n: n + 1,
    "a lambda with another constant": lambda: lambda n: n + 2,
    "a lambda with another operation": lambda: lambda n: n - 1,
    "a lambda with another default": lambda: adding_one,
    "a function that the lambda calls": lambda: lambda n: scaled(n, 1),
    "another function that it calls": lambda: lambda n: scaled_otherwise(n, 1),
    "a constant that it reads": lambda: lambda n: n + FACTOR,
    "a function of an installed package": lambda: lambda n: pc.add(n, 1),
    "another one of it": lambda: lambda n: pc.subtract(n, 1),
    "a module of the application": lambda: lambda n: groups.position(n + 1),
    "another function in it": lambda: lambda n: groups.batch(n, []),
    "a set of constants": lambda: lambda n: str(n) in {"a", "b", "c"},
    "a function in it": lambda: lambda n: [each + 1 for each in (n,)],
    "another function in it with another constant": lambda: lambda n: [each + 2 for each in (n,)],
    "a closure": lambda: scaling(1),
    "a closure with another value": lambda: scaling(2),
    "a partial": lambda: partial(scaled, by=1),
    "a partial with another argument": lambda: partial(scaled, by=2),
    "a partial of another function": lambda: partial(scaled_otherwise, by=1),
    "a partial of a closure": lambda: partial(scaling(1)),
    "a method": lambda: Scaled(1).scale,
    "a method of an object with another value": lambda: Scaled(2).scale,
    "an object that is called": lambda: Scaled(1),
    "one that calls itself": lambda: recursive,
    "a cached one": lambda: lru_cache(scaled_once),
    "compiled": lambda: operator.neg,
    "another compiled one": lambda: operator.pos,
    "a compiled method": lambda: "a".__add__,
    "a compiled method of another object": lambda: "b".__add__,
    "a function of the class of another one": lambda: Decimal.from_float,
    "a function of an installed package, itself": lambda: pc.utf8_upper,
    "another one": lambda: pc.utf8_lower,
}


def scaled(n: int, by: int) -> int:
    return n * by


def scaled_otherwise(n: int, by: int) -> int:
    return n * by * by


def adding_one(n: int, by: int = 1) -> int:
    return n + by


def scaled_once(n: int) -> int:
    return n


def scaling(by: int) -> Callable[[int], int]:
    def scale(n: int) -> int:
        return n * by

    return scale


def recursive(n: int) -> int:
    return recursive(n - 1) if n else 0


class Scaled:
    """An object of the application that a transform may call."""

    def __init__(self, by: int) -> None:
        self._by = by

    def __call__(self, n: int) -> int:
        return self.scale(n)

    def scale(self, n: int) -> int:
        """Return a multiple."""
        return n * self._by


class ScaledOtherwise(Scaled):
    """Another object with the same value."""

    def scale(self, n: int) -> int:
        """Return another multiple."""
        return -n * self._by


def count_from(n: int) -> Iterator[int]:
    yield n


def of_function(function: object) -> str:
    return identity_of(OnRow, {"function": function})


def test_functions_that_do_different_things_have_different_identities() -> None:
    found = {name: of_function(make()) for name, make in FUNCTIONS.items()}
    assert found == {name: of_function(make()) for name, make in FUNCTIONS.items()}
    same = {identity: [name for name in found if found[name] == identity] for identity in found.values()}
    assert [names for names in same.values() if len(names) > 1] == []
    assert not any(identity.startswith(UNKNOWN) for identity in found.values())


def test_another_process_finds_the_same_identity_of_each_function() -> None:
    program = (
        "import tests.unit.transforms.test_identity as t; "
        "print(*(t.of_function(make()) for make in t.FUNCTIONS.values()))"
    )
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        result = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
        )
        assert result.stdout.split() == [of_function(make()) for make in FUNCTIONS.values()]


def test_a_text_that_only_moved_is_the_same_and_another_text_is_not() -> None:
    def made(text: str) -> str:
        variables: dict[str, object] = {"__name__": "application"}
        exec(compile(text, "application.py", "exec"), variables)
        return of_function(variables["f"])

    text = "def f(change):\n    return None if change == 'a' else change\n"
    assert made(text) == made("\n\n# moved\n" + text)
    assert made(text) != made(text.replace("'a'", "'b'"))
    guarded = "def f(change):\n    try:\n        return g(change)\n    except ValueError:\n        return 1\n"
    assert made(guarded) != made(guarded.replace("ValueError", "KeyError"))
    helper = "def g(x):\n    return x + 1\n" + guarded
    assert made(helper) != made(helper.replace("+ 1", "+ 2"))


def test_the_code_of_a_transform_of_the_application_counts_and_ours_does_not() -> None:
    def kind(by: int) -> type[Transform]:
        class MadeObject(Transform):
            def bind(self, shape: TableShape) -> BoundTransform | None:
                raise NotImplementedError(by)

        return MadeObject

    assert kind(1)().definition == kind(1)().definition != kind(2)().definition
    description = ValueDescription("application")
    assert description.of_class(Mask) == ["tidemark.transforms.masks.Mask"]
    assert of_function(Scaled(1).scale) != of_function(ScaledOtherwise(1).scale)


@pytest.mark.parametrize("value", [Lock(), [[0]] * 30_000, count_from(1)])
def test_what_cannot_be_described_is_never_the_same(value: object) -> None:
    for given in (value, lambda: value, partial(of_function, value), [value]):
        identity = of_function(given)
        assert identity.startswith(UNKNOWN)
        assert not is_same(identity, identity)
        assert not is_same(joined_identity(["a", identity]), joined_identity(["a", identity]))
    assert is_same(of_function(scaled), of_function(scaled))


def test_a_value_in_itself_has_an_identity_or_none_but_an_end() -> None:
    endless: list[object] = []
    endless.append(endless)
    assert of_function(endless).startswith(UNKNOWN)
    linked = Scaled(1)
    vars(linked)["next"] = linked
    assert is_same(of_function(linked), of_function(linked))


def test_what_a_function_keeps_while_it_runs_does_not_count() -> None:
    calls: list[int] = []

    def counted(change: Change) -> Change:
        calls.append(1)
        return change

    transform = OnRow(counted)
    plans = TransformPlans([transform], lambda _: COLUMNS)
    first = plans.plan("shop", relation()).identity
    counted(Change.__new__(Change))
    assert plans.plan("shop", relation("person", 16390)).identity == first
    assert TransformPlans([transform], lambda _: COLUMNS).plan("shop", relation()).identity != first


def test_the_description_has_no_text_of_a_secret() -> None:
    described = str(ValueDescription("application").of(partial(of_function, KEY)))
    assert KEY.digest in described
    assert KEY.content.decode() not in described
    assert KEY.content.hex() not in described


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
