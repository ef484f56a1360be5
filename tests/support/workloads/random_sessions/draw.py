"""The random choices for the statements of one transaction, and the data that all sessions of a load share."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from tests.support.oracles.oracle import SQL_ASCII
from tests.support.samples.type_samples import SAMPLES, SINCE
from tidemark.decode.types.encodings import PYTHON_ENCODINGS

T = TypeVar("T")

TABLES = 8  # volatile ones, t0 to t7: created, dropped, renamed, changed
COLUMNS = 10  # c0 to c9: a name keeps its type all through a load, so that a value for it can be drawn
IDS_PER_TRANSACTION = 10_000
TRANSACTIONS_PER_SESSION = 100_000
NULL_SHARE = 0.1
# Types on the oracle's closed list: all else on their lines is compared.
OTHER_SAMPLES: Mapping[str, Sequence[str]] = {
    "aclitem": ("postgres=r/postgres",),
    "raw_pair": ("(1,now)", "(,)"),
    "regproc[]": ("{now,pi}",),
}
# Types that print names, which other sessions change at the same time; some may not exist when they are used.
NAME_SAMPLES: Mapping[str, Sequence[str]] = {
    "regclass": ("pg_class", "0", "account", "parted_0", "t0", "t1", "other.t2"),
    "regtype[]": ("{int4,text}", "{mood,t0}", "{other.mood}"),
    "regnamespace": ("public", "other"),
    "name_pair": ("(account,public)", "(t0,other)", "(,)"),
}
PLAIN_SAMPLES = {**SAMPLES, **OTHER_SAMPLES, **NAME_SAMPLES}


class Step(NamedTuple):
    """A statement; `rows` are the input of COPY FROM STDIN, in its text format."""

    sql: str
    rows: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """The data that all sessions share."""

    seed: str
    major: int
    compressions: tuple[str, ...] = ("pglz",)  # of TOAST, as the server was built
    messages: bool = True
    rewrites: float = 0.02  # share of transactions that rewrite catalogs
    definitions: float = 0.25  # share of DDL in the other transactions
    encoding: str = "UTF8"  # of the database

    def can_hold(self, text: str) -> bool:
        """Return whether the database's encoding has all characters of `text`."""
        try:
            text.encode(PYTHON_ENCODINGS[self.encoding])
        except UnicodeEncodeError:
            return False
        return True

    @property
    def columns(self) -> Mapping[str, str]:
        """The types of volatile columns by name."""
        dice = random.Random(f"{self.seed} columns")
        known = [name for name in PLAIN_SAMPLES if SINCE.get(name, 0) <= self.major]
        return {f"c{number}": dice.choice(known) for number in range(COLUMNS)}


class Draw:
    """The random numbers of transaction `number` of session `session`."""

    def __init__(self, load: Load, session: int, number: int) -> None:
        self.load = load
        self.name = f"{session}_{number}"
        self._dice = random.Random(f"{load.seed} session {session} transaction {number}")
        self._columns = load.columns
        self._next_id = 1000 + (session * TRANSACTIONS_PER_SESSION + number) * IDS_PER_TRANSACTION

    def chance(self, share: float) -> bool:
        """Return true with this probability."""
        return self._dice.random() < share

    def pick(self, choices: Sequence[T]) -> T:
        """Return one of `choices`."""
        return self._dice.choice(choices)

    def weighted(self, choices: Mapping[T, float]) -> T:
        """Return one of `choices`, by their weights."""
        (picked,) = self._dice.choices(list(choices), list(choices.values()))
        return picked

    def number(self, below: int) -> int:
        """Return a random integer, 0 or greater."""
        return self._dice.randrange(below)

    def new_ids(self, count: int) -> range:
        """Return keys that no other session has."""
        first, self._next_id = self._next_id, self._next_id + count
        return range(first, first + count)

    def table(self) -> str:
        """Return the name of a volatile table, which may not exist."""
        return f"t{self.number(TABLES)}"

    def column(self) -> str:
        """Return the name of a volatile column, which may not exist."""
        return self.pick(list(self._columns))

    def type_of(self, column: str) -> str:
        """Return the type of a volatile column, unless it was changed to text."""
        return self._columns[column]

    def plain_value(self, column: str) -> str | None:
        """Return a value for a column, not quoted; None is NULL."""
        type_name = self._columns[column]
        if self.chance(NULL_SHARE):
            return None
        return self.pick([sample for sample in PLAIN_SAMPLES[type_name] if self.load.can_hold(sample)])

    def value(self, column: str) -> str:
        """Return a value for a column as a literal of unknown type."""
        plain = self.plain_value(column)
        return "NULL" if plain is None else quoted(plain)

    def text(self) -> str:
        """Return an expression of type text: short, compressible, or neither, and then stored out of line in chunks."""
        torn = r"E'torn \xff\xc3'" if self.load.encoding == SQL_ASCII else quoted("it's é")
        return self.pick(
            (
                "NULL",
                torn,
                "'short'",
                quoted("it's é"),
                f"repeat('compressible ', {self.number(3000)})",
                f"noise({self.number(3000)}, {self.number(1000)})",
                f"noise({2000 + self.number(20000)}, {self.number(1000)})",
                f"repeat('x', {100 + self.number(1900)})",
            )
        )


def quoted(text: str) -> str:
    """Return a literal (standard_conforming_strings is on)."""
    return "'" + text.replace("'", "''") + "'"


def copied(value: str | None) -> str:
    """Return a value in COPY's text format."""
    if value is None:
        return r"\N"
    return value.replace("\\", r"\\").replace("\n", r"\n").replace("\t", r"\t").replace("\r", r"\r")
