"""How an expression names its parts in messages, and where they are in its text."""

import re

import sqlglot
from sqlglot import exp


def called(node: exp.Expr) -> str:
    """Return the name of a node for messages, as SQL spells it."""
    if isinstance(node, exp.Anonymous):
        return str(node.sql(dialect="postgres"))
    return name_of(type(node))


def name_of(kind: type[exp.Expr]) -> str:
    """Return the name of a kind of nodes, as SQL spells it."""
    if issubclass(kind, exp.Binary):
        made = kind(this=exp.column("a"), expression=exp.column("b"))
        for written in (made.sql(dialect="postgres"), made.sql()):
            if written.startswith("a ") and written.endswith(" b"):
                return str(written[2:-2])
    if issubclass(kind, exp.Func):
        return str(kind.sql_name())
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__).upper()


def word_place(node: exp.Expr, text: str) -> tuple[int, int] | None:
    """Return where the name of a function, or another word, is in the text; None: the node is not written by one."""
    if isinstance(node, exp.Binary):
        return None
    if "start" in node.meta:
        return int(node.meta["start"]), int(node.meta["end"]) + 1
    # sqlglot keeps no place of functions with a syntax of their own: it is before the arguments.
    names = node.sql_names() if isinstance(node, exp.Func) else [name_of(type(node))]
    tokens = [token for token in sqlglot.tokenize(text, dialect="postgres") if token.text.upper() in names]
    first = offset(node)
    found = [token for token in tokens if token.start <= first] or tokens
    return (found[-1].start, found[-1].end + 1) if found else None


def offset(node: exp.Expr) -> int:
    """Return where a node begins: only some nodes have a place of their own."""
    places = [int(each.meta["start"]) for each in node.walk() if "start" in each.meta]
    return min(places, default=0)
