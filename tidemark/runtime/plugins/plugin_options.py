"""The options of a plug-in in the configuration, checked against the parameters of its constructor and their types.

Parameters of numbers, text, booleans, lists, tables, enums and dataclasses take values of TOML. A `Path` takes text, a
`Secret` the table {file = "..."} or {environment = "NAME"}, and a function its import path. `*names` takes a list.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from types import UnionType
from typing import Union, get_args, get_origin, get_type_hints

import msgspec

from tidemark.io.process.config_faults import fault
from tidemark.io.process.plugin_config import Options
from tidemark.io.process.secret_sources import BadSecret, secret_environment, secret_file
from tidemark.model.secret import Secret
from tidemark.runtime.plugins.plugin_path import BadPlugin, calling, import_object

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_REPEATED = inspect.Parameter.VAR_POSITIONAL


class _SecretSource(msgspec.Struct, forbid_unknown_fields=True):
    """Where a secret is; the configuration contains none."""

    file: str = ""
    environment: str = ""


@dataclass(frozen=True, slots=True)
class PluginArguments:
    """The arguments of a constructor."""

    repeated: tuple[object, ...]
    named: Mapping[str, object]


def checked_options(plugin: type, options: Options, key: str) -> PluginArguments:
    """Return the arguments for the constructor of a plug-in; raise `BadPlugin` with all that is wrong.

    key: the file and the section, for messages.
    """
    parameters = inspect.signature(plugin).parameters
    hints = calling(lambda: get_type_hints(plugin.__init__), f"{key}: reading the types of {plugin.__qualname__}")  # type: ignore[misc]
    known = {name: each for name, each in parameters.items() if each.kind in (*_NAMED, _REPEATED)}
    faults = [f"{key}.{name}: unknown key; {_known(plugin, known)}" for name in options if name not in known]
    repeated: tuple[object, ...] = ()
    named: dict[str, object] = {}
    for name, parameter in known.items():
        if name not in options:
            if parameter.default is inspect.Parameter.empty and parameter.kind is not _REPEATED:
                faults.append(f"{key}.{name}: {plugin.__qualname__} needs this key")
            continue
        is_repeated = parameter.kind is _REPEATED
        hint: object = hints.get(name)
        try:
            value = _value(options[name], list[hint] if is_repeated and hint else hint, f"{key}.{name}")  # type: ignore[valid-type]
        except _WrongValueError as wrong:
            faults.append(str(wrong))
            continue
        if is_repeated and isinstance(value, list):
            repeated = tuple(value)
        else:
            named[name] = value
    if faults:
        raise BadPlugin("; ".join(faults))
    return PluginArguments(repeated, named)


class _WrongValueError(Exception):
    """A value that does not have the type of its parameter."""


def _value(given: object, hint: object, key: str) -> object:
    """Return a value in the type of its parameter."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if hint is None:
        return given
    if Secret in members:
        return _secret(given, key)
    if Path in members:
        return Path(str(_plain(given, str, key)))
    if any(get_origin(member) is Callable or member is Callable for member in members):
        return import_object(str(_plain(given, str, key)), key)
    plain = [member for member in members if _is_plain(member)]
    if not plain:
        raise _WrongValueError(f"{key}: this parameter cannot be set in a configuration")
    return _plain(given, reduce(or_, plain), key)


def _plain(given: object, shape: object, key: str) -> object:
    if reason := fault(given, shape):
        raise _WrongValueError(f"{key}: {reason}")
    return msgspec.convert(given, shape, strict=False)


def _is_plain(member: object) -> bool:
    """Return whether values of a type can be written in TOML."""
    try:
        return not isinstance(msgspec.inspect.type_info(member), msgspec.inspect.CustomType)
    except TypeError:
        return False


def _secret(given: object, key: str) -> Secret:
    if fault(given, _SecretSource):
        raise _WrongValueError(f'{key}: a secret is given as {{file = "..."}} or {{environment = "NAME"}}')
    source = msgspec.convert(given, _SecretSource)
    if bool(source.file) == bool(source.environment):
        raise _WrongValueError(f"{key}: give one of file and environment")
    try:
        return secret_file(source.file) if source.file else secret_environment(source.environment)
    except BadSecret as bad:
        raise BadPlugin(f"{key}: {bad}", hint=bad.hint) from bad


def _known(plugin: type, known: Mapping[str, object]) -> str:
    return f"{plugin.__qualname__} has {', '.join(known) or 'no options'}"
