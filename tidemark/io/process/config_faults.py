"""What is wrong with a value of the configuration, in words and without the value: it may be a secret."""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import get_args, get_type_hints

import msgspec

from tidemark.io.process.lake_config import LakeTableConfig

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


def _choice(choices: Iterable[object]) -> str:
    return f"Expected one of {', '.join(repr(str(choice)) for choice in choices)}"


def _choice_in_table(error: str) -> str:
    """Return the error for a wrong value in `[[lake.tables]]` with the right ones; "" for another error."""
    place = _WRONG_CHOICE.fullmatch(error)
    choices = get_type_hints(LakeTableConfig).get(place[2]) if place is not None else None
    if place is None or not (isinstance(choices, type) and issubclass(choices, StrEnum)):
        return ""
    return f"{_choice(choices)}{place[1]}"
