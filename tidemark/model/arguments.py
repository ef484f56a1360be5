"""The checks of arguments that code gives to the library, by the kind that each of them must have.

What code passes between its own parts is checked by mypy; an application may not use it.
"""

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Mapping
from enum import Enum
from functools import wraps
from reprlib import repr as short_repr
from typing import ParamSpec, TypeGuard, TypeVar

from tidemark.model.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")
Check = Callable[[str, object], None]
"""Raises `ConfigError` if a value is not of its kind; called with the name of the argument and the value."""
HANDLER = "the handler"  # in messages
_SHOWN = (str, int, float, Enum, type(None))
_LISTS_NOT = (str, bytes, Mapping)


def is_plain_function(given: object) -> bool:
    """Return whether a call of a value runs its code at once; that of an async function or a generator does not."""
    if not callable(given) or isinstance(given, type):
        return False
    later = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return not any(is_later(each) for is_later in later for each in (given, type(given).__call__))


def check_has_run(returned: object, what: str) -> None:
    """Raise `ConfigError` if a function of an application has returned an object whose code has not run."""
    if isinstance(returned, Awaitable | Generator | AsyncGenerator):
        raise ConfigError(
            f"{what} returned a {type(returned).__name__}, whose code has not run",
            hint="call it in the function, and let that return nothing; AsyncHandler is for an event loop of asyncio",
        )


def must_be(accepts: Callable[[object], bool], text: str, hint: str | None = None) -> Check:
    """Return the check that a value is accepted; `text` describes the values that are."""

    def check(name: str, given: object) -> None:
        if not accepts(given):
            raise ConfigError(f"{name}={_shown(given)}: must be {text}", hint=hint)

    return check


def list_of(each: Check, text: str, hint: str | None = None) -> Check:
    """Return the check that a value is a list or another collection, and each of its elements is of a kind."""
    check_list = must_be(_is_list, text, hint)

    def check(name: str, given: object) -> None:
        check_list(name, given)
        assert isinstance(given, Collection), "it was checked"
        for index, element in enumerate(given):
            each(f"{name}[{index}]", element)

    return check


def whole_number(least: int, most: int) -> Check:
    """Return the check that a value is a number without a fraction within bounds."""
    return must_be(lambda given: _is_int(given) and least <= given <= most, f"a whole number from {least} to {most}")


def number(accepts: Callable[[float], bool], text: str) -> Check:
    """Return the check that a value is a number that is accepted."""
    return must_be(lambda given: (_is_int(given) or isinstance(given, float)) and accepts(given), f"a number {text}")


def one_of(choices: type[Enum]) -> Check:
    """Return the check that a value is a member of an enum."""
    return must_be(lambda given: isinstance(given, choices), f"one of {', '.join(map(str, choices))}")


def instance_of(kind: type, text: str, hint: str | None = None) -> Check:
    """Return the check that a value is an instance of a class."""
    return must_be(lambda given: isinstance(given, kind), text, hint)


def checked_arguments(where: str, checks: Mapping[str, Check]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function that first checks its arguments by name; a value that is the default is accepted."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for name, given in signature.bind(*args, **kwargs).arguments.items():
                if name in checks and given is not signature.parameters[name].default:
                    checks[name](f"{where}: {name}", given)
            return function(*args, **kwargs)

        return call

    return decorate


def _is_list(given: object) -> bool:
    return isinstance(given, Collection) and not isinstance(given, _LISTS_NOT)


def _is_int(given: object) -> TypeGuard[int]:
    return isinstance(given, int) and not isinstance(given, bool)


def _shown(given: object) -> str:
    """Return a value for a message; of an object only its class, since it may have secrets."""
    if isinstance(given, type):
        return f"<class {given.__name__}>"
    return short_repr(given) if isinstance(given, _SHOWN) else f"<{type(given).__name__} object>"


ABOVE_0 = number(lambda given: given > 0, "greater than 0")
WAIT_S_MAX = 86_400  # as of times in the configuration: the waits of a thread have a limit
WITHIN_S = number(lambda given: 0 <= given <= WAIT_S_MAX, f"of seconds from 0 to {WAIT_S_MAX}")
PLAIN_FUNCTION = must_be(
    is_plain_function,
    "a function that is neither async nor a generator",
    hint="of an object give its method; of a class create an object; AsyncHandler is for an event loop of asyncio",
)
