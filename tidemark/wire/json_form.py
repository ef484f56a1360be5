"""Frozen dataclasses as JSON, by the types of their fields: the form of the state's values and of an outbox's events.

Reading is strict, because `write` produced the JSON: a value of another type is a `JsonMismatch`, never converted.
Unknown fields are ignored, since a later version may write more; a missing field must have a default.
"""

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Generic, TypeVar

import msgspec

ValueT = TypeVar("ValueT")
NO_NAMES: Mapping[str, str] = {}


class JsonMismatch(Exception):
    """Invalid JSON, or JSON of another form: the message has the expected type and the place."""


class JsonForm(Generic[ValueT]):
    """The JSON form of one type."""

    def __init__(self, shape: object, earlier_names: Mapping[str, str] = NO_NAMES) -> None:
        """`shape` is a type, also a generic one such as `tuple[T, ...]`; `earlier_names`: see `Key`."""
        self._shape = shape
        self._earlier_names = earlier_names

    @cached_property
    def _decoder(self) -> "msgspec.json.Decoder[ValueT]":
        """Created at first use: most programs read few of the forms."""
        return msgspec.json.Decoder(self._shape)

    def write(self, value: ValueT) -> bytes:
        """Return the JSON. Names may contain bytes that are invalid in their encoding: they become U+FFFD."""
        try:
            return msgspec.json.encode(value, enc_hook=_plain)
        except UnicodeEncodeError:
            tree = msgspec.to_builtins(value, enc_hook=_plain, str_keys=True)
            text = json.dumps(tree, ensure_ascii=False, separators=(",", ":"))
            return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace").encode()

    def read(self, payload: bytes) -> ValueT:
        """Return the value; raise `JsonMismatch` if `payload` is not the output of `write`."""
        try:
            try:
                return self._decoder.decode(payload)
            except msgspec.ValidationError:
                if not self._earlier_names:
                    raise
                return self._decoder.decode(self._renamed(payload))
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise JsonMismatch(str(error)) from error
        except AssertionError as error:
            raise JsonMismatch("an invalid value") from error

    def _renamed(self, payload: bytes) -> bytes:
        """Return the JSON of an earlier version with the present names of its fields."""
        tree = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
        return msgspec.json.encode({self._earlier_names.get(name, name): value for name, value in tree.items()})


def _plain(value: object) -> object:
    """Convert a value that the encoder does not support to one that it does."""
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(type(value).__name__)
