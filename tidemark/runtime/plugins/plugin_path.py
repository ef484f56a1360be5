"""From the name of a plug-in in a configuration to its class: an import path or an entry point of a package."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import Generic, TypeVar

from tidemark.io.process.config import BadConfig
from tidemark.model.arguments import is_plain_function
from tidemark.model.errors import OF_APPLICATION, ExitCode, TidemarkError
from tidemark.runtime.plugins.consumer import Consumer
from tidemark.runtime.plugins.handler import AnyHandler, Handler
from tidemark.serializers.serializer import Serializer
from tidemark.transforms.transform import Transform

PLUGIN = TypeVar("PLUGIN", Consumer | AnyHandler, Transform, Serializer)
_WRITE = 'write "package.module:Name", or the name of an entry point'


class BadPlugin(BadConfig):
    """A plug-in that cannot be used as it is configured; the message names file, section and key."""

    hint = "docs/consumers.md describes plug-ins and their options"


class PluginRaised(TidemarkError):
    """A plug-in whose module or constructor raised an error."""

    exit_code = ExitCode.CONSUMER_FAILED
    hint = "the error is in the plug-in: correct it, or the options in its section"


@dataclass(frozen=True, slots=True)
class PluginKind(Generic[PLUGIN]):
    """A kind of plug-in: its base classes, and the group of its entry points."""

    bases: tuple[type[PLUGIN], ...]
    group: str

    @property
    def names(self) -> str:
        """The names of the base classes for users."""
        return " or ".join(f"tidemark.{base.__name__}" for base in self.bases)


CONSUMERS: PluginKind[Consumer | AnyHandler] = PluginKind((Consumer, Handler), "tidemark.consumers")
TRANSFORMS: PluginKind[Transform] = PluginKind((Transform,), "tidemark.transforms")
SERIALIZERS: PluginKind[Serializer] = PluginKind((Serializer,), "tidemark.serializers")


@dataclass(frozen=True, slots=True)
class PluginClass(Generic[PLUGIN]):
    """A class that was found, its import path and its version ("" if it has none)."""

    plugin: type[PLUGIN]
    path: str
    version: str


def find_plugin(name: str, kind: PluginKind[PLUGIN], key: str) -> PluginClass[PLUGIN]:
    """Return the class that `name` stands for; raise `BadPlugin`, `PluginRaised`. `key`: for messages."""
    path = name if ":" in name else _entry_point(name, kind.group, key).value
    found = import_object(path, key)
    if not (isinstance(found, type) and issubclass(found, kind.bases)):
        what = found.__name__ if isinstance(found, type) else f"a {type(found).__name__}"
        raise BadPlugin(f"{key}: {name} is {what}, and not a subclass of {kind.names}")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise BadPlugin(f"{key}: {name} is incomplete: it does not define {missing}")
    if kind is CONSUMERS and (later := _methods_that_run_later(found, kind.bases)):
        raise BadPlugin(
            f"{key}: {name}: {', '.join(later)}: must be a method that is neither async nor a generator: a call would "
            "not run its code"
        )
    return PluginClass(found, f"{found.__module__}:{found.__qualname__}", _version(found))


def _methods_that_run_later(plugin: type, bases: tuple[type, ...]) -> list[str]:
    """Return the methods of a base class of which a call returns before their code has run."""
    known = {name for base in bases if issubclass(plugin, base) for name in vars(base) if not name.startswith("_")}
    found = [(name, getattr(plugin, name)) for name in sorted(known)]
    return [name for name, method in found if callable(method) and not is_plain_function(method)]


def import_object(path: str, key: str) -> object:
    """Return the object of an import path `package.module:Name`; raise `BadPlugin`, `PluginRaised`."""
    module_name, colon, qualified = path.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module_name.split("."), *qualified.split("."))):
        raise BadPlugin(f"{key}: {path!r} is not an import path", hint=_WRITE)
    found: object = calling(lambda: _imported(module_name, key), f"{key}: importing {module_name}")
    for part in qualified.split("."):
        if not hasattr(found, part):
            raise BadPlugin(f"{key}: the module {module_name} has no {qualified}", hint=_WRITE)
        found = getattr(found, part)
    return found


RETURNED = TypeVar("RETURNED")


def calling(call: Callable[[], RETURNED], what: str) -> RETURNED:
    """Return what code of a plug-in returns; raise `PluginRaised` for any error that is not one of Tidemark."""
    try:
        return call()
    except TidemarkError:
        raise
    except OF_APPLICATION as error:
        raise PluginRaised(f"{what} raised {type(error).__name__}: {error}") from error


def _imported(module_name: str, key: str) -> object:
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # a module that the plug-in itself needs
        raise BadPlugin(
            f"{key}: there is no module {error.name}",
            hint="install the package into the environment of the daemons; both daemons need it",
        ) from None


def _entry_point(name: str, group: str, key: str) -> EntryPoint:
    known = entry_points(group=group)
    found = {each.value: each for each in known if each.name == name}
    if not found:
        names = ", ".join(sorted({each.name for each in known})) or "none"
        raise BadPlugin(f"{key}: no package has an entry point {name} in {group}; installed: {names}", hint=_WRITE)
    if len(found) > 1:
        raise BadPlugin(f"{key}: the entry point {name} in {group} is ambiguous: {', '.join(sorted(found))}")
    return next(iter(found.values()))


def _version(plugin: type) -> str:
    """Return the version that a plug-in declares, or that of the package with its name."""
    declared = getattr(plugin, "version", "")
    if isinstance(declared, str) and declared:
        return declared
    try:
        return version(plugin.__module__.partition(".")[0])
    except PackageNotFoundError:
        return ""
