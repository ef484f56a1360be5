"""The identity of a transform: by it a start recognises that the transforms of a table are not those of before.

It is a hash of the class and of the arguments of its constructor. A function counts by its import path, so another text
of the same function is not recognised, and an object of another class by its class alone.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from re import Pattern

import pyarrow as pa

from tidemark.model.secret import Secret

CHARACTERS = 16
_SHOWN = (bytes, Decimal, date, time, timedelta, Enum, Pattern, pa.DataType, pa.Scalar)  # by their text


def identity_of(kind: type, arguments: Mapping[str, object]) -> str:
    """Return the identity of an object that a class makes of these arguments."""
    given = [_named(name, value) for name, value in sorted(arguments.items())]
    return joined_identity([_path(kind), *given])


def joined_identity(parts: Iterable[str]) -> str:
    """Return one identity of several in an order; "" if there are none."""
    given = list(parts)
    return hashlib.sha256(json.dumps(given).encode()).hexdigest()[:CHARACTERS] if given else ""


def _named(name: str, value: object) -> str:
    try:
        return json.dumps([name, value], sort_keys=True, default=_described)
    except TypeError:  # a mapping whose keys JSON does not have
        return json.dumps([name, _path(type(value))])


def _described(value: object) -> object:
    """Return a value that JSON has, for one that it does not. NB: a secret is described by its hash."""
    if isinstance(value, Secret):
        return ["secret", value.digest]
    if isinstance(value, _SHOWN) or hasattr(value, "__fspath__"):  # the latter: a path
        return [_path(type(value)), str(value)]
    if isinstance(value, AbstractSet):
        return sorted(json.dumps(each, default=_described) for each in value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return [value.__module__, value.__qualname__]
    return _path(type(value))


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
