"""What is wrong with values of the configuration, in words and without the values: they may be secrets."""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import get_args, get_type_hints

import msgspec

from tidemark.io.process.lake_config import LakeTableConfig

_SECTIONS = 'as in {"types": {"decimals": "string"}}'
_WRONG_CHOICE = re.compile(
    r"Invalid enum value .*( - at `\$\[\d+\]\.(\w+)`)", re.DOTALL
)  # msgspec's text, which has the value


def fault(value: object, shape: object) -> str:
    """Return what is wrong with a value; "" if nothing is."""
    try:
        msgspec.convert(value, shape, strict=False)
    except msgspec.ValidationError as error:
        choices = [*shape] if isinstance(shape, type) and issubclass(shape, StrEnum) else get_args(shape)
        if choices and all(isinstance(choice, str) for choice in choices):
            return _choice(choices)  # NB: the error has the value
        return _choice_in_table(str(error)) or str(error)
    return ""


def sections_fault(given: object) -> str:
    """Return what is wrong with the form of values that code gives by section and key; "" if nothing is."""
    if not isinstance(given, Mapping):
        return f"expected a mapping {_SECTIONS}, got {type(given).__name__}"
    for section, values in given.items():
        if not isinstance(section, str):
            return f"expected sections {_SECTIONS}, got one named by {type(section).__name__}"
        if not isinstance(values, Mapping):
            return f"{section}: expected a mapping of keys {_SECTIONS}, got {type(values).__name__}"
        for key in values:
            if not isinstance(key, str):
                return f"{section}: expected keys {_SECTIONS}, got one named by {type(key).__name__}"
    return ""


def _choice(choices: Iterable[object]) -> str:
    return f"Expected one of {', '.join(repr(str(choice)) for choice in choices)}"


def _choice_in_table(error: str) -> str:
    """Return the error for a wrong value in `[[lake.tables]]` with the right ones; "" for another error."""
    place = _WRONG_CHOICE.fullmatch(error)
    choices = get_type_hints(LakeTableConfig).get(place[2]) if place is not None else None
    if place is None or not (isinstance(choices, type) and issubclass(choices, StrEnum)):
        return ""
    return f"{_choice(choices)}{place[1]}"
