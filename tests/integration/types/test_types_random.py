"""Random values, thousands at a time, through the server: its output function against ours, and Arrow both ways.

Seeded, not Hypothesis: the server is the oracle, a round trip costs a table and a checkpoint, and a failing value needs
no shrinking.
"""

import json
import math
import operator
import random
import struct
from collections.abc import Callable

import psycopg
import pyarrow as pa
import pytest
from psycopg.rows import TupleRow

from tests.support.forged.spans import inserts
from tests.support.servers.heap_pages import describe_relation, load_values, output_texts, packed_tuples, stored_values
from tests.support.servers.postgres import Cluster
from tidemark.decode.arrow.batches import BatchBuilder
from tidemark.decode.types.codec import Dialect
from tidemark.decode.types.registry import column_codec
from tidemark.model.lsn import Oid

SEED = 20261121
VALUES = 3000
LETTERS = "abcXYZ019 \t\n\r\v\f\\\"'{},;:[]()NUL\x01\x1f\x7fäß€😀\u2028"

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]


def plain_text(rng: random.Random) -> str:
    return "".join(rng.choices(LETTERS, k=rng.randrange(12)))


def double(rng: random.Random) -> str:
    # NB: decimals half way between two doubles exist where doubles are even integers: from 2 ** 53 to about 10 ** 18.
    values: list[float] = [
        *struct.unpack("<d", rng.randbytes(8)),
        float(rng.randrange(2**53, 10**18)),
        float(rng.randrange(2**53, 2**56)),
        math.ldexp(1.0, rng.randrange(-1074, 1024)),
        round(rng.uniform(-1e6, 1e6), rng.randrange(8)),
        float(rng.randrange(1, 1000)) * 10.0 ** rng.randrange(-20, 25),
    ]
    return repr(rng.choice(values)).replace("inf", "Infinity")


def single(rng: random.Random) -> str:
    numbers = [float(rng.randrange(2**24, 2**36)), math.ldexp(1.0, rng.randrange(-149, 128)), rng.uniform(-1e5, 1e5)]
    values: list[float] = [*struct.unpack("<f", rng.randbytes(4)), *struct.unpack("<3f", struct.pack("<3f", *numbers))]
    return repr(rng.choice(values)).replace("inf", "Infinity")


def numeric(rng: random.Random) -> str:
    whole = "".join(rng.choices("00123456789", k=rng.randrange(40)))
    fraction = "".join(rng.choices("00123456789", k=rng.randrange(1, 40)))
    exponent = rng.choice(["", "", f"e{rng.randrange(-60, 60)}"])
    return rng.choice(["", "-"]) + whole + "." + fraction + exponent


def small_numeric(rng: random.Random) -> str:
    units = rng.randrange(10 ** rng.randrange(1, 19))
    return f"{rng.choice(['', '-'])}{units // 10**6}.{units % 10**6:06d}"


def interval(rng: random.Random) -> str:
    months, days, usecs = rng.choice([(2**31, 2**31, 2**62), (30, 3, 10**11), (2, 2, 2), (1, 1, 2**62)])
    return (
        f"{rng.randrange(-months, months)} months {rng.randrange(-days, days)} days "
        f"{rng.randrange(-usecs, usecs)} microseconds"
    )


def text_array(rng: random.Random) -> str:
    """An array literal of one to three dimensions, any bounds."""
    sizes = [rng.randrange(1, 4) for _ in range(rng.randrange(1, 4))]
    bounds = "".join(f"[{low}:{low + size - 1}]" for size in sizes for low in [rng.randrange(-2, 3)])

    def body(depth: int) -> str:
        if depth < len(sizes):
            return "{" + ",".join(body(depth + 1) for _ in range(sizes[depth])) + "}"
        if rng.random() < 0.2:
            return "NULL"
        return '"' + plain_text(rng).replace("\\", "\\\\").replace('"', '\\"') + '"'

    return f"{bounds}={body(0)}"


def number_array(rng: random.Random) -> str:
    return "{" + ",".join(rng.choice(["NULL", small_numeric(rng)]) for _ in range(rng.randrange(10))) + "}"


def json_value(rng: random.Random, depth: int = 0) -> JsonValue:
    if depth < 4 and rng.random() < 0.5:
        if rng.random() < 0.5:
            return [json_value(rng, depth + 1) for _ in range(rng.randrange(6))]
        return {plain_text(rng): json_value(rng, depth + 1) for _ in range(rng.randrange(6))}
    return rng.choice([None, True, False, rng.randrange(10**25), rng.uniform(-1e9, 1e9), plain_text(rng)])


def address(rng: random.Random) -> str:
    if rng.random() < 0.3:
        return ".".join(str(rng.randrange(256)) for _ in range(4)) + rng.choice(["", f"/{rng.randrange(33)}"])
    words = [rng.choice([0, 0, 0, 1, 0xFFFF, rng.randrange(65536)]) for _ in range(8)]
    return ":".join(f"{word:x}" for word in words) + rng.choice(["", f"/{rng.randrange(129)}"])


def time_with_zone(rng: random.Random) -> str:
    seconds = rng.randrange(86400)
    zone = rng.randrange(57600)
    return (
        f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{rng.choice([0, rng.randrange(10**6)]):06d}"
        f"{rng.choice('+-')}{zone // 3600:02d}:{zone // 60 % 60:02d}:{rng.choice([0, zone % 60]):02d}"
    )


def uuid(rng: random.Random) -> str:
    return rng.randbytes(16).hex()


def bytea(rng: random.Random) -> str:
    return "\\x" + rng.randbytes(rng.randrange(200)).hex()


def day(rng: random.Random) -> str:
    return str(rng.choice([rng.randrange(-2451545, 2145031949), rng.randrange(-800_000, 3_000_000)]))


def instant(rng: random.Random) -> str:
    return str(rng.choice([rng.randrange(-211813488000000000, 9223371331200000000), rng.randrange(-(10**17), 10**17)]))


def part(rng: random.Random) -> str:
    """A bound of a range, or an attribute of a row: quoted for both."""
    return '"' + plain_text(rng).replace("\\", "\\\\").replace('"', '""') + '"'


def row(rng: random.Random) -> str:
    inner = f"({rng.choice(['', rng.randrange(99)])},{rng.choice(['', part(rng)])})"
    doubled = inner.replace("\\", "\\\\").replace('"', '""')
    numbers = rng.choice(["", f'"{{{rng.randrange(9)},NULL}}"'])
    return f'({rng.choice(["", small_numeric(rng)])},"{doubled}",{numbers},{rng.choice(["t", "f", ""])},{part(rng)})'


def word_range(rng: random.Random) -> str:
    low, high = sorted(text for text in (f"{rng.randrange(9)}{plain_text(rng)}" for _ in range(2)))
    bounds = [text.replace("\\", "\\\\").replace('"', '""') for text in (low, high)]
    return f'{rng.choice("[(")}"{bounds[0]}",{rng.choice([f"{chr(34)}{bounds[1]}{chr(34)}", ""])}{rng.choice("])")}'


def multirange(rng: random.Random) -> str:
    edges = sorted(rng.sample(range(-1000, 1000), 2 * rng.randrange(9)))
    spans = [f"[{low}.{rng.randrange(99)},{high}.5)" for low, high in zip(edges[::2], edges[1::2], strict=True)]
    return "{" + ",".join(spans) + "}"


def amount(rng: random.Random) -> str:
    cents = rng.randrange(10 ** rng.randrange(1, 19))
    return f"{rng.choice(['', '-'])}{cents // 100}.{cents % 100:02d}"


def shape(rng: random.Random) -> str:
    return ",".join(f"({double(rng)},{double(rng)})" for _ in range(rng.randrange(1, 6)))


def lexemes(rng: random.Random) -> str:
    words = (plain_text(rng).replace("\\", "\\\\").replace("'", "''") for _ in range(rng.randrange(6)))
    return " ".join(f"'{word}x':{rng.randrange(1, 16384)}{rng.choice('ABCD')},{rng.randrange(1, 99)}" for word in words)


def search(rng: random.Random, depth: int = 0) -> str:
    if depth > 4 or rng.random() < 0.3:
        word = plain_text(rng).replace("\\", "\\\\").replace("'", "''")
        return f"'{word}x'{rng.choice(['', ':*', ':AB', ':*D'])}"
    if rng.random() < 0.2:
        return f"!({search(rng, depth + 1)})"
    sign = rng.choice(["&", "|", "<->", f"<{rng.randrange(50)}>"])
    return f"({search(rng, depth + 1)}) {sign} ({search(rng, depth + 1)})"


def pairs(rng: random.Random) -> str:
    def text() -> str:
        return '"' + plain_text(rng).replace("\\", "\\\\").replace('"', '\\"') + '"'

    return ",".join(f"{text()}=>{rng.choice([text(), 'NULL'])}" for _ in range(rng.randrange(8)))


INSTANT = (
    "'2000-01-01 00:00:00+00' + (value / 86400000000) * INTERVAL '1 day'"
    " + (value % 86400000000) * INTERVAL '1 microsecond'"
)

# Declaration: function for a value's literal; or, for types whose whole range can be listed, type and expression.
CASES: dict[str, tuple[Callable[[random.Random], str], str, str]] = {
    "double precision": (double, "", ""),
    "real": (single, "", ""),
    "numeric": (numeric, "", ""),
    "numeric(18,6)": (small_numeric, "", ""),
    "interval": (interval, "", ""),
    "text": (plain_text, "", ""),
    "text[]": (text_array, "", ""),
    "numeric[]": (number_array, "", ""),
    "jsonb": (lambda rng: json.dumps(json_value(rng), ensure_ascii=False), "", ""),
    "bytea": (bytea, "", ""),
    "uuid": (uuid, "", ""),
    "inet": (address, "", ""),
    "time with time zone": (time_with_zone, "", ""),
    "random_row": (row, "", ""),
    "random_row[]": (lambda rng: '{"' + row(rng).replace("\\", "\\\\").replace('"', '\\"') + '",NULL}', "", ""),
    "random_range": (word_range, "", ""),
    "nummultirange": (multirange, "", ""),
    "polygon": (shape, "", ""),
    "path": (lambda rng: f"[{shape(rng)}]", "", ""),
    "tsvector": (lexemes, "", ""),
    "tsquery": (search, "", ""),
    "hstore": (pairs, "", ""),
    "money": (amount, "", ""),
    "bit varying": (lambda rng: f"{rng.randrange(1 << rng.randrange(1, 70)):b}", "", ""),
    "date": (day, "integer", "DATE '2000-01-01' + value"),
    "timestamp": (instant, "bigint", f"TIMESTAMP {INSTANT}"),
    "timestamp with time zone": (instant, "bigint", f"TIMESTAMPTZ {INSTANT}"),
}


@pytest.fixture(scope="module")
def session(session: psycopg.Connection[TupleRow]) -> psycopg.Connection[TupleRow]:
    session.execute("CREATE TYPE random_pair AS (a int, b text)")
    session.execute("CREATE TYPE random_row AS (a numeric, b random_pair, c int[], d bool, e text)")
    session.execute('CREATE TYPE random_range AS RANGE (subtype = text, collation = "C")')
    return session


@pytest.mark.parametrize("declaration", CASES)
def test_text_and_arrow_equal_the_servers_output(
    cluster: Cluster, session: psycopg.Connection[TupleRow], declaration: str
) -> None:
    make, counted_type, expression = CASES[declaration]
    rng = random.Random(SEED)
    values = [make(rng) for _ in range(VALUES)]
    if counted_type:
        load_values(session, "counted", counted_type, values)
        load_values(session, "random_values", declaration, [])
        session.execute(f"INSERT INTO random_values (value) SELECT {expression} FROM counted ORDER BY number")
    else:
        load_values(session, "random_values", declaration, values)

    column, payloads = stored_values(cluster.data, session, "random_values")
    codec = column_codec(column, Dialect.of("UTF8", cluster.major))
    expected = output_texts(session, "random_values")
    assert [codec.text(payload) for payload in payloads if isinstance(payload, bytes)] == expected

    from_disk = pa.array([codec.arrow_value(p) for p in payloads if isinstance(p, bytes)], codec.arrow_type)
    from_text = pa.array([codec.parse_text(text) for text in expected if text is not None], codec.arrow_type)
    relation = describe_relation(session, "random_values")
    (batch,) = BatchBuilder(Oid(1), relation).build(inserts(packed_tuples(cluster.data, session, "random_values")))
    batch.rows.validate(full=True)
    after = batch.rows.column("_after").to_pylist()
    after.sort(key=operator.itemgetter("number"))
    assert repr([row["value"] for row in after]) == repr(from_disk.to_pylist())
    if "NaN" in expected:  # NaN equals nothing: compare the bits
        from_disk, from_text = (pa.array(map(repr, column.to_pylist())) for column in (from_disk, from_text))
    assert from_disk.equals(from_text)
