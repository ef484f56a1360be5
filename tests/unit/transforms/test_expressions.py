"""Expressions of SQL on changes: values as PostgreSQL defines them, and errors with line and column."""

import pyarrow as pa
import pytest

from tests.support.samples.changed_rows import SampleRow, batch_of, columns_of, customers
from tidemark.model.lsn import Oid
from tidemark.model.relation import Align, TypeDescription, TypeKind
from tidemark.transforms.expressions.casts import cast
from tidemark.transforms.expressions.sql_expression import BadExpression, SqlExpression
from tidemark.transforms.expressions.sql_types import ComparedAs, SqlType, type_of_column
from tidemark.transforms.transform import TableShape, TransformFailed

ANN = {"id": 1, "name": "Ann", "email": "ann@x.org", "total": "10.50", "score": 1.5, "vip": True}
ROWS: list[SampleRow] = [
    ("i", None, {"id": 1, "name": "Ann", "email": "ann@x.org", "score": 1.5, "vip": True}),
    ("u", {"id": 2, "name": "old"}, {"id": 2, "name": "new", "score": 0.25}),
    ("u", {"id": 3, "name": None}, {"id": 3, "name": None, "email": "c_d@x.org"}),
    ("d", {"id": 4, "name": "gone"}, None),
]
SHAPE = TableShape.of("shop", customers(), columns_of(customers()))


def values(text: str) -> list[object]:
    found: list[object] = SqlExpression(text, "Filter").bind(SHAPE).values(batch_of(*ROWS).arrow).to_pylist()
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id", [1, 2, 3, 4]),
        ("ID = 4", [False, False, False, True]),
        ("after.id", [1, 2, 3, None]),
        ("before.name = 'old'", [None, True, None, False]),
        ("before.name IS DISTINCT FROM after.name", [True, True, False, True]),
        ("before.name IS NOT DISTINCT FROM after.name", [False, False, True, False]),
        ("name IS NULL OR name = 'Ann'", [True, False, True, False]),
        ("name = 'Ann' AND id > 0", [True, False, None, False]),
        ("NOT (id BETWEEN 2 AND 3)", [True, False, False, True]),
        ("id IN (1, 4)", [True, False, False, True]),
        ("name IN ('Ann', NULL)", [True, None, None, None]),
        ("email LIKE '%@x.org'", [True, None, True, None]),
        (r"email LIKE 'c\_d%'", [False, None, True, None]),
        ("email ILIKE 'ANN%'", [True, None, False, None]),
        ("email ~ '^a.n@'", [True, None, False, None]),
        ("starts_with(email, 'c')", [False, None, True, None]),
        ("score > 0.5", [True, False, None, None]),
        ("id * 2 + 1 - id / 2", [3, 4, 6, 7]),
        ("-id", [-1, -2, -3, -4]),
        ("abs(-id)", [1, 2, 3, 4]),
        ("lower(name) || '!'", ["ann!", "new!", None, "gone!"]),
        ("upper(coalesce(name, 'none'))", ["ANN", "NEW", "NONE", "GONE"]),
        ("length(name)", [3, 3, None, 4]),
        ("vip IS TRUE", [True, False, False, False]),
        ("vip IS NOT TRUE", [False, True, True, True]),
        ("vip IS FALSE", [False, False, False, False]),
        ("change.op = 'u'", [False, True, True, False]),
        ("change.commit_time < '2000-01-01'", [True] * 4),
        ("since > '2000-01-01 00:00:00+00'", [None] * 4),
        ("CAST(id AS text) = '3'", [False, False, True, False]),
        ("id::double precision / 2", [0.5, 1.0, 1.5, 2.0]),
        ("true", [True] * 4),
        ("born < DATE '2000-01-01'", [None] * 4),
    ],
)
def test_an_expression_has_the_value_that_it_has_in_sql(text: str, expected: list[object]) -> None:
    assert values(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id = ", "line 1, column 4"),
        (
            "after.name = = 'x'",
            "column 14: syntax error at or near .=.: an operand or an argument is missing, in: after.name = = 'x'$",
        ),
        ("id = (1", r'column 7: syntax error at or near "1": expected \), in'),
        ("lower(name, id)", r'column 15: syntax error at or near "\)": too many arguments, in'),
        ("length()", "an operand or an argument is missing, in"),
        ("id = 1 AND since > now()", r"line 1, column 20: now\(\) is not permitted, in: id = 1 AND since > now\(\)$"),
        ("id = 1 AND born > current_date", "line 1, column 19: current_date is not permitted"),
        ("id = 1 AND\n extract(year from born) > 1", r"line 2, column 2: extract\(\) is not permitted"),
        ("since > interval '1 day'", "line 1, column 9: interval is not permitted"),
        ("id % 2 = 0", "line 1, column 1: % is not permitted"),
        ("name SIMILAR TO 'x'", "SIMILAR TO is not permitted"),
        ("name = 1 AND " + "x" * 90 + " = = 2", f"column 107: .*, in: {'x' * 37} = = 2$"),
        ("id = 1 2", 'line 1, column 8: syntax error at or near "2", in: id = 1 2$'),
        ("name = 'x", "line 1, column 10: a quote or a comment is not closed"),
        ("id = 1; id = 2", "one expression is needed, found 2"),
        ("", "one expression is needed, found 0"),
        ("id = 1\n AND EXISTS (SELECT 1)", "line 2, column 6: EXISTS.. is not permitted"),
        ("pg_backend_pid() = 1", r"line 1, column 1: pg_backend_pid\(\) is not permitted"),
        ("(SELECT 1) = 1", "SUBQUERY is not permitted"),
        ("id =" + " 1" * 10_000, "more than 10000 characters"),
    ],
)
def test_text_that_is_no_permitted_expression_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(BadExpression, match=f"^Filter: .*{message}"):
        SqlExpression(text, "Filter")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id = 1\n  AND nam = 'x'", "line 2, column 7: public.customers has no column nam; its columns are id, name"),
        ('"ID" = 1', "line 1, column 1: public.customers has no column ID"),
        ("other.id = 1", "line 1, column 1: other.id: write before.x"),
        ("change.lsn = 1", "line 1, column 1: change has op, commit_time"),
        ("id > 0 AND name > id", "line 1, column 12: > does not apply to string and int64"),
        ("id = 'x'", "line 1, column 6: 'x' is not a valid int64"),
        ("id + 'a'", "'a' is not a valid int64"),
        ("lower(id)", "line 1, column 1: LOWER does not apply to int64"),
        ("name LIKE email", "the pattern of LIKE must be a text in quotes"),
        ("name ~ '('", r"line 1, column 8: '\(' is not a valid pattern of ~,"),
        ("CAST(name AS jsonb) IS NULL", "line 1, column 6: a cast to JSONB is not permitted"),
        ("id AND vip", "AND does not apply to int64 and bool"),
    ],
)
def test_an_expression_that_does_not_fit_a_table_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(BadExpression, match=f"Filter: .*{message}"):
        SqlExpression(text, "Filter").bind(SHAPE)


def test_the_error_of_an_operator_or_function_lists_those_that_are_permitted() -> None:
    with pytest.raises(BadExpression) as raised:
        SqlExpression("id % 2 = 0", "Filter")
    assert raised.value.hint.startswith("permitted are =, <>, >, >=, <, <=, IS DISTINCT FROM, ")
    for name in ("/", "||", "~*", "ILIKE", "COALESCE", "CAST", "LENGTH", "STARTS_WITH"):
        assert name in raised.value.hint.split(", ")


@pytest.mark.parametrize(("name", "expected"), [("numeric", [3, -3, 4]), ("float8", [2, -2, 4])])
def test_halves_are_rounded_by_the_type_in_the_server_also_if_they_are_delivered_as_floats(
    name: str, expected: list[int]
) -> None:
    convert = cast(SqlType(pa.float64(), name=name), pa.int32(), "int")
    assert convert(pa.array([2.5, -2.5, 3.5])).to_pylist() == expected


def test_a_masked_column_is_the_text_that_it_became() -> None:
    citext = TypeDescription(Oid(16500), "public", "citext", "citext", TypeKind.BASE, -1, False, Align.INT)
    assert type_of_column(citext, pa.string()).kind is ComparedAs.OPAQUE
    assert type_of_column(None, pa.string()).kind is ComparedAs.TEXT


def test_a_condition_must_be_boolean() -> None:
    with pytest.raises(BadExpression, match="line 1, column 1: a condition is needed, this is int64"):
        SqlExpression("id + 1", "Filter").bind_condition(SHAPE)


@pytest.mark.parametrize(
    "text",
    [
        "1 / (id - 1)",
        "id * 9223372036854775807",
        "CAST(name AS int)",
        "CAST(id + 10000000000000000000 AS bigint)",
    ],
)
def test_a_failure_on_a_value_does_not_show_the_value(text: str) -> None:
    with pytest.raises(TransformFailed, match=r"^Filter on public.customers: it failed on the values of a row$") as at:
        values(text)
    assert at.value.__suppress_context__
