"""Masks of columns: values on both sides, types, refusals."""

import hmac
from hashlib import sha256

import pytest

from tests.support.samples.changed_rows import batch_of, bound, customers, rows_of, with_full_identity
from tidemark import Mask, Secret
from tidemark.transforms.transform import BadTransform

KEY = Secret(b"0123456789abcdef")
ANN = {"id": 1, "name": "Ann Smith", "email": "ann@x.org", "tags": ["a"], "score": 2.0}
TABLE = with_full_identity(customers())
BATCH = batch_of(("i", None, ANN), ("u", ANN, {**ANN, "email": None}), ("d", ANN, None), of=TABLE)


def masked(mask: Mask) -> list[dict[str, object]]:
    """Return all sides of the masked rows."""
    (found,) = bound(mask, to=TABLE).apply(BATCH)
    return [dict(side) for _, before, after in rows_of(found) for side in (before, after) if side is not None]


def test_by_default_values_become_null_on_both_sides() -> None:
    rest = {"id": 1, "name": "Ann Smith", "tags": ["a"], "score": 2.0}
    assert masked(Mask("public.customers.email")) == [rest] * 4


def test_a_keyed_hash_keeps_equal_values_equal_and_null() -> None:
    expected = hmac.new(KEY.content, b"ann@x.org", sha256).hexdigest()
    assert [side.get("email") for side in masked(Mask("customers.email", key=KEY))] == [expected] * 2 + [None, expected]
    assert len({str(side["score"]) for side in masked(Mask("customers.score", key=KEY))}) == 1


def test_a_part_of_a_text_can_remain() -> None:
    assert masked(Mask("public.*.name", keep_first=1, keep_last=2))[0]["name"] == "A******th"
    assert masked(Mask("public.*.name", keep_first=1))[0]["name"] == "A********"
    assert masked(Mask("public.*.name", keep_last=3))[0]["name"] == "******ith"
    assert masked(Mask("public.*.name", keep_first=5, keep_last=4))[0]["name"] == "*********"
    assert masked(Mask("public.*.name", truncate_to=3))[0]["name"] == "Ann"


def test_a_constant_replaces_each_value_but_not_null() -> None:
    assert [side.get("email") for side in masked(Mask("public.cust*.e*", constant="hidden"))] == [
        *("hidden", "hidden", None, "hidden")
    ]
    assert masked(Mask("customers.score", constant=0))[0]["score"] == 0.0


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (Mask("customers.id"), r"Mask\('customers.id'\): id of public.customers is in the key: after masking, "),
        (Mask("*.*.i*", key=KEY), "id of public.customers is in the key"),
        (Mask("customers.mail"), "public.customers has no column mail; its columns are id, name, email"),
        (Mask("customers.mail|post"), "has no column mail or post"),
        (Mask("customers.tags", key=KEY), "tags of public.customers has the type list<.*>, which has no text"),
        (Mask("customers.score", keep_last=2), "has the type double: only text has characters"),
        (Mask("customers.score", constant="x"), "has the type double, and constant='x' is not a value of this type"),
    ],
)
def test_a_mask_that_does_not_fit_the_table_is_refused_with_the_reason(mask: Mask, message: str) -> None:
    with pytest.raises(BadTransform, match=message):
        bound(mask, to=TABLE)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ((), {}, "needs columns"),
        (("email",), {}, "not a column's name: 'email'"),
        (("a.b.c.d",), {}, "not a column's name"),
        (("a.b",), {"constant": "x", "keep_last": 4}, "give one of key, constant"),
        (("a.b",), {"keep_last": -1}, "must be 0 or greater"),
    ],
)
def test_a_mask_with_bad_arguments_is_refused(columns: tuple[str, ...], options: dict[str, int], message: str) -> None:
    with pytest.raises(BadTransform, match=message):
        Mask(*columns, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", [b"0123456789abcdef", "0123456789abcdef"])
def test_a_key_that_is_no_secret_is_refused_without_its_text(key: object) -> None:
    with pytest.raises(BadTransform, match=rf"^Mask\('a.b'\): key is a {type(key).__name__}, not a Secret$") as raised:
        Mask("a.b", key=key)  # type: ignore[arg-type]
    assert "secret_file" in raised.value.hint


def test_another_table_is_left_as_it_is() -> None:
    assert bound(Mask("public.orders.email"), to=TABLE).steps == ()
    assert bound(Mask("*.*.email", has_column="phone"), to=TABLE).steps == ()
    assert bound(Mask("public.customers.email|mail"), to=customers("id", "mail")).steps != ()


def test_a_key_is_not_shown() -> None:
    assert "0123" not in f"{KEY} {KEY!r} {Mask('a.b', key=KEY)}"
