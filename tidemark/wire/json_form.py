"""Frozen dataclasses as JSON, by the types of their fields: the form of the state's values and of an outbox's events.

A form is made of a type, when it is first asked to read, and knows what values of ours are made of: dataclasses, enums,
tuples, mappings, integers, floats, booleans, text, bytes (base64) and None. Reading is strict, since what stands there
was written by `write`: a value of another kind is a `Misfit`, never converted. What is there beyond the fields is
passed over, for a later version may write more; what is missing has to have a default. Fields that no caller of the
constructor gives are not written.
"""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as BadBase64
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache, cached_property, partial
from types import NoneType, UnionType
from typing import Generic, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

ValueT = TypeVar("ValueT")
Read = Callable[[object], object]


class Misfit(Exception):
    """JSON that is none, or has another form: says what was expected, never what was found."""


class JsonForm(Generic[ValueT]):
    """The JSON form of one type."""

    def __init__(self, shape: object) -> None:
        """`shape` is the type, or a generic one as `tuple[T, ...]`."""
        self._shape = shape

    @cached_property
    def _read(self) -> Read:
        return _reader(self._shape)

    def write(self, value: ValueT) -> bytes:
        """Return the JSON. Names may hold bytes that are invalid in their encoding: U+FFFD stands for them."""
        text = json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":"))
        try:
            return text.encode()
        except UnicodeEncodeError:
            return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace").encode()

    def read(self, payload: bytes) -> ValueT:
        """Return the value; raise `Misfit` where `payload` is not what `write` gives."""
        try:
            tree: object = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise Misfit("no JSON") from error
        return self._read(tree)  # type: ignore[return-value]  # the reader is made of the shape


@cache
def _names(shape: type) -> tuple[str, ...]:
    """Return the fields of a dataclass that are written."""
    return tuple(field.name for field in fields(shape) if field.init)


def _plain(value: object) -> object:
    """Return what the encoder knows in place of what it does not know."""
    if isinstance(value, bytes):
        return urlsafe_b64encode(value).decode()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    shape: type = type(value)
    return {name: getattr(value, name) for name in _names(shape)}


@cache
def _reader(shape: object) -> Read:
    """Return what reads values of a type."""
    while isinstance(shape, NewType):
        shape = shape.__supertype__
    origin, arguments = get_origin(shape), get_args(shape)
    if origin in (Union, UnionType):
        (present,) = (argument for argument in arguments if argument is not NoneType)
        return partial(_optional, _reader(present))
    if origin is tuple:
        *items, last = arguments
        return partial(_items, _reader(items[0] if last is Ellipsis else last), None if last is Ellipsis else 1)
    if origin is Mapping:
        return partial(_mapping, *map(_reader, arguments))
    assert isinstance(shape, type), shape
    if issubclass(shape, Enum):
        return partial(_member, {member.value: member for member in shape})
    if is_dataclass(shape):
        return _dataclass(shape)
    return {bytes: _bytes, float: _float}.get(shape) or partial(_exactly, shape)


def _exactly(kind: type, tree: object) -> object:
    if type(tree) is not kind:  # NB: True is no integer here
        raise Misfit(f"no {kind.__name__}")
    return tree


def _optional(read: Read, tree: object) -> object:
    return None if tree is None else read(tree)


def _float(tree: object) -> float:
    if isinstance(tree, bool) or not isinstance(tree, int | float):
        raise Misfit("no float")
    return float(tree)


def _bytes(tree: object) -> bytes:
    try:
        return urlsafe_b64decode(str(_exactly(str, tree)))
    except (BadBase64, ValueError) as error:
        raise Misfit("no base64") from error


def _items(read: Read, count: int | None, tree: object) -> tuple[object, ...]:
    if not isinstance(tree, list) or count not in (None, len(tree)):
        raise Misfit("no list" if count is None else f"no list of {count}")
    return tuple(map(read, tree))


def _mapping(read_key: Read, read: Read, tree: object) -> dict[object, object]:
    if not isinstance(tree, dict):
        raise Misfit("no mapping")
    return {_key(read_key, key): read(value) for key, value in tree.items()}


def _key(read: Read, key: str) -> object:
    """Return a key, of which JSON makes text."""
    try:
        return read(key)
    except Misfit:
        return read(int(key)) if key.isascii() and key.isdecimal() else read(None)


def _member(members: Mapping[object, Enum], tree: object) -> Enum:
    if not isinstance(tree, str | int) or tree not in members:
        raise Misfit("none of the choices")
    return members[tree]


def _dataclass(shape: type) -> Read:
    """Return what reads a dataclass. NB: the readers of its fields are made with the first one: types may nest."""
    hints: dict[str, object] = get_type_hints(shape)
    needed = {field.name for field in fields(shape) if field.init and _has_no_default(field)}
    readers: dict[str, Read] = {}

    def read(tree: object) -> object:
        if not isinstance(tree, dict):
            raise Misfit(f"no {shape.__name__}")
        if not readers:
            readers.update({name: _reader(hints[name]) for name in _names(shape)})
        if missing := needed - tree.keys():
            raise Misfit(f"{shape.__name__} without {', '.join(sorted(missing))}")
        found: dict[str, object] = {}
        for name, read_field in readers.items():
            if name in tree:
                try:
                    found[name] = read_field(tree[name])
                except Misfit as error:
                    raise Misfit(f"{shape.__name__}.{name}: {error}") from None
        try:
            made: object = shape(**found)
        except AssertionError as error:
            raise Misfit(f"{shape.__name__} that cannot be") from error
        return made

    return read


def _has_no_default(field: object) -> bool:
    return all(getattr(field, name) is MISSING for name in ("default", "default_factory"))
