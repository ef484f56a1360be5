"""A description of a value that is equal in each process for equal values, and has no secret's text.

A function of Python counts by its code, its defaults, what its closure has, and the global names that it uses; a class
by its functions; any other object by what `pickle` stores of it. Code of the standard library, of Tidemark and of other
installed packages counts by its import path. What has no such description raises `NotDescribed`: to count it by its
class alone would take another value for the same.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import singledispatchmethod
from re import Pattern
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType, ModuleType

import pyarrow as pa

from tidemark.model.secret import Secret

VALUES_MAX = 20_000  # values in one description: the globals of a function may lead anywhere
DEPTH_MAX = 64  # of values in each other
TEXT_MAX = 4096  # characters of a value that are in the description; of a longer one its hash is
PICKLE_PROTOCOL = 4  # of 5 and later, buffers may be outside of the reduced form
_PLAIN = (type(None), bool, int, float, str)
_LIBRARIES = ("site-packages", "dist-packages")
_OWN = "tidemark"
_SLOTS = (GetSetDescriptorType, MemberDescriptorType)
_GENERATED = "<string>"  # the file of the functions that `dataclass` makes from the fields
_NO_MEMBERS = frozenset({"_abc_impl"})

Described = None | bool | int | float | str | list["Described"] | dict[str, "Described"]


class NotDescribed(Exception):
    """A value without a description: a lock, a connection, or one that leads to too many others."""


class ValueDescription:
    """Describes the values of one transform."""

    def __init__(self, home: str) -> None:
        """`home`: the module of the transform's class."""
        self._packages = {_package(home)} - {_OWN}  # of the application, although one may be installed
        self._known: dict[int, tuple[int, object]] = {}  # by id: its number, and the object, which so keeps the id
        self._count = self._depth = 0

    def of(self, value: object) -> Described:
        """Return the description of a value; raise `NotDescribed`."""
        self._count += 1
        self._depth += 1
        if self._count > VALUES_MAX or self._depth > DEPTH_MAX:
            raise NotDescribed(f"{self._count} values, {self._depth} in each other")
        try:
            return self._of(value)
        finally:
            self._depth -= 1

    def of_class(self, kind: type) -> Described:
        """Return the description of a class: its path, and the code of each class of the application in it."""
        described: list[Described] = [_path(kind)]
        for each in kind.__mro__:
            if self._is_installed(each.__module__):
                continue
            is_new = self._is_new(each)
            described.append([_path(each), self._members(each)] if is_new else _path(each))
        return described

    @singledispatchmethod
    def _of(self, value: object) -> Described:
        """Return the description of an object: others than those below."""
        if hasattr(type(value), "__fspath__"):  # a path
            return [_path(type(value)), str(value)]
        if not self._is_new(value):
            return ["again", self._known[id(value)][0]]
        is_compiled = callable(value) and isinstance(getattr(value, "__qualname__", None), str)
        return self._compiled(value) if is_compiled else self._reduced(value)

    @_of.register
    def _(self, value: int | float | str | None) -> Described:
        return value if type(value) in _PLAIN else [_path(type(value)), str(value)]

    @_of.register
    def _(self, value: Secret) -> Described:
        return ["secret", value.digest]

    @_of.register
    def _(self, value: bytes | bytearray | memoryview) -> Described:
        return [_path(type(value)), _text(bytes(value).hex())]

    @_of.register
    def _(self, value: Decimal | date | time | timedelta | Enum | Pattern | pa.DataType) -> Described:  # type: ignore[type-arg]
        return [_path(type(value)), str(value)]

    @_of.register
    def _(self, value: list | tuple) -> Described:  # type: ignore[type-arg]
        items = [self.of(each) for each in value]
        return items if type(value) in (list, tuple) else [_path(type(value)), items]

    @_of.register
    def _(self, value: set | frozenset) -> Described:  # type: ignore[type-arg]
        return [_path(type(value)), *sorted(json.dumps(self.of(each), sort_keys=True) for each in value)]

    @_of.register
    def _(self, value: dict) -> Described:  # type: ignore[type-arg]
        if type(value) is dict and all(type(key) is str for key in value):
            return {key: self.of(each) for key, each in value.items()}
        pairs = [json.dumps([self.of(key), self.of(each)], sort_keys=True) for key, each in value.items()]
        return [_path(type(value)), *sorted(pairs)]

    @_of.register
    def _(self, value: ModuleType) -> Described:
        return ["module", value.__name__]

    @_of.register
    def _(self, value: type) -> Described:
        return self.of_class(value)

    @_of.register
    def _(self, value: FunctionType) -> Described:
        return self._function(value) if self._is_new(value) else ["again", self._known[id(value)][0]]

    @_of.register
    def _(self, value: MethodType | staticmethod | classmethod) -> Described:  # type: ignore[type-arg]
        return [_path(type(value)), self.of(getattr(value, "__self__", None)), self.of(value.__func__)]

    @_of.register
    def _(self, value: property) -> Described:
        return ["property", self.of([value.fget, value.fset, value.fdel])]

    def _function(self, function: FunctionType) -> Described:
        code, wrapped = function.__code__, getattr(function, "__wrapped__", None)
        module = str(function.__module__)  # None: of text that `exec` ran
        described: list[Described] = ["function", module, function.__qualname__, self.of(wrapped)]
        if self._depth == 1:
            self._packages.add(_package(module))
        written_in = str(function.__globals__.get("__name__", ""))  # NB: `wraps` copies `__module__` of another one
        is_own_wrapper = wrapped is not None and _package(written_in) == _OWN
        if is_own_wrapper or (self._is_installed(module) and _has_import_path(function)):
            return described
        used = {name: function.__globals__[name] for name in _names(code) if name in function.__globals__}
        described += [self._code(code), self.of(function.__defaults__), self.of(function.__kwdefaults__)]
        described.append([self.of(_content(cell)) for cell in function.__closure__ or ()])
        described.append([[name, self._global(each, code)] for name, each in sorted(used.items())])
        return described

    def _global(self, value: object, code: CodeType) -> Described:
        """Return the description of what a global name means; of a module, of what the code may use of it."""
        if not isinstance(value, ModuleType) or self._is_installed(value.__name__):
            return self.of(value)
        attributes = {name: vars(value)[name] for name in _names(code) if name in vars(value)}
        return ["module", value.__name__, *([name, self.of(each)] for name, each in sorted(attributes.items()))]

    def _code(self, code: CodeType) -> Described:
        """Return the description of code. NB: `co_code` has no specialised instructions; lines do not count."""
        constants = [self._code(each) if isinstance(each, CodeType) else self.of(each) for each in code.co_consts]
        names: list[Described] = [*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars]
        counts: list[Described] = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags]
        return [code.co_code.hex(), code.co_exceptiontable.hex(), constants, names, counts]

    def _compiled(self, value: object) -> Described:
        """Return the description of a callable without code of Python: its import path, and what it is bound to."""
        bound = getattr(value, "__self__", None)
        of_module = isinstance(bound, ModuleType)
        path: list[Described] = [str(getattr(value, "__module__", "")), str(getattr(value, "__qualname__", ""))]
        return ["compiled", *path, None if of_module else self.of(bound), self.of(getattr(value, "__wrapped__", None))]

    def _reduced(self, value: object) -> Described:
        """Return the description of an object by what `pickle` stores of it."""
        try:
            reduced = value.__reduce_ex__(PICKLE_PROTOCOL)
        except Exception as error:  # the object's own: whatever it is, it has no reduced form
            raise NotDescribed(_path(type(value))) from error
        if isinstance(reduced, str):
            return [_path(type(value)), reduced]
        parts: list[object] = [list(part) if isinstance(part, Iterator) else part for part in reduced]
        self._is_new(parts)  # NB: it keeps them: another object could get an id among them
        return [_path(type(value)), *(self.of(part) for part in parts)]

    def _members(self, kind: type) -> Described:
        """Return the descriptions of a class's functions and values; not of what Python adds."""
        described: list[Described] = []
        for name, member in sorted(vars(kind).items()):
            is_function = isinstance(member, FunctionType | staticmethod | classmethod | property)
            is_special = name.startswith("__") and name.endswith("__")
            is_generated = isinstance(member, FunctionType) and member.__code__.co_filename == _GENERATED
            if isinstance(member, _SLOTS) or name in _NO_MEMBERS or is_generated or (is_special and not is_function):
                continue
            described.append([name, self.of(member)])
        return described

    def _is_new(self, value: object) -> bool:
        """Give an object its number; return false for one that has a description, or is in its own."""
        if id(value) in self._known:
            return False
        self._known[id(value)] = len(self._known), value
        return True

    def _is_installed(self, module: str) -> bool:
        """Return whether a module is none of the application, so that its code counts by its path."""
        package = _package(module)
        if package in self._packages:
            return False
        if package in (_OWN, "builtins") or package in sys.stdlib_module_names:
            return True
        file = str(getattr(sys.modules.get(module), "__file__", None) or "")
        return any(part in file for part in _LIBRARIES)


def _has_import_path(function: FunctionType) -> bool:
    return vars(sys.modules.get(function.__module__, object)).get(function.__qualname__) is function


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that code may use of its module, with those of the functions in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _content(cell: object) -> object:
    try:
        return getattr(cell, "cell_contents")  # noqa: B009
    except ValueError:  # empty: the function that would fill it has not run so far
        return "<empty>"


def _text(text: str) -> str:
    return text if len(text) <= TEXT_MAX else hashlib.sha256(text.encode()).hexdigest()


def _package(module: str) -> str:
    return module.partition(".")[0]


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
