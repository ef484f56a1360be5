"""The section `[lake]`: settings of the lake's tables, by patterns of their names."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cached_property
from typing import Annotated

import msgspec
from msgspec import Meta

from tidemark.engine.selection import matches

MERGE_ROWS = 1_000_000  # so that the memory of a merge is bounded
NAMES_MAX = 1 << 16  # of tables whose settings are kept, some 120 bytes each


class Written(StrEnum):
    """What the pipeline writes of a table."""

    BOTH = "both"
    LOG = "log"
    REPLICA = "replica"


class SchemaPolicy(StrEnum):
    """What a change of a table's columns does."""

    EVOLVE = "evolve"  # log and replica follow it
    FAIL = "fail"  # the table is paused before it
    IGNORE = "ignore"  # log and replica keep their columns


class LakeTableConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the lake's tables that match a pattern."""

    pattern: Annotated[str, Meta(min_length=1)]
    log_keep_days: Annotated[int, Meta(ge=0, le=36_500)] = 0
    file_keep_hours: Annotated[int, Meta(ge=0, le=8_784)] = 0
    dropped_keep_days: Annotated[int, Meta(ge=0, le=36_500)] = 0
    write: Written = Written.BOTH
    schema_policy: SchemaPolicy = SchemaPolicy.EVOLVE
    cluster: Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(max_length=4)] = ()
    partition: Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(max_length=4)] = ()
    merge_rows: Annotated[int, Meta(ge=1_000, le=100_000_000)] = MERGE_ROWS
    merge_interval_s: Annotated[int, Meta(ge=0, le=86_400)] = 0
    soft_deletes: bool = False
    deleted_keep_days: Annotated[int, Meta(ge=0, le=36_500)] = 0

    @property
    def contents(self) -> str:
        """Return the settings that determine what log and replica contain, as text."""
        columns = ", ".join(self.partition)
        return (
            f"write = '{self.write.value}', schema_policy = '{self.schema_policy.value}', "
            f"soft_deletes = {str(self.soft_deletes).lower()}, partition = [{columns}]"
        )

    def conflicts(self) -> Iterator[str]:
        """Yield the settings that have no effect beside the others, each with the reason."""
        if self.write is Written.LOG:
            of_replica = {
                "cluster": bool(self.cluster),
                "merge_rows": self.merge_rows != MERGE_ROWS,
                "merge_interval_s": bool(self.merge_interval_s),
                "soft_deletes": self.soft_deletes,
            }
            yield from (f"{key}: with write = 'log' there is no replica" for key, given in of_replica.items() if given)
        if self.write is Written.REPLICA and self.log_keep_days:
            yield "log_keep_days: with write = 'replica' there is no log"
        if self.deleted_keep_days and not self.soft_deletes:
            yield "deleted_keep_days: without soft_deletes no deleted row is kept"
        for key, names in (("cluster", self.cluster), ("partition", self.partition)):
            yield from (f"{key}: {name} is listed twice" for name in _repeated(names))
        both = [name for name in self.cluster if name in self.partition]
        yield from (f"cluster: {name} is a partition column, of which each file has one value" for name in both)


def _repeated(names: Sequence[str]) -> list[str]:
    return [name for at, name in enumerate(names) if name in names[:at]]


ALL_TABLES = LakeTableConfig("*.*")


@dataclass(frozen=True)
class LakeConfig:
    """The lake, as the pipeline writes it."""

    tables: tuple[LakeTableConfig, ...] = ()
    slow_write_s: Annotated[float, Meta(ge=0, le=86_400)] = 60.0
    executor_bytes_min: Annotated[int, Meta(ge=0, le=1 << 40)] = 0
    executor_job_s: Annotated[float, Meta(ge=1, le=86_400)] = 300.0
    maintain_commits: Annotated[int, Meta(ge=0, le=100_000)] = 100
    maintain_bytes: Annotated[int, Meta(ge=1 << 20, le=1 << 30)] = 64 << 20
    maintain_files: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    store_endpoint: str = ""
    store_region: str = ""
    store_allow_http: bool = False
    store_credentials_file: str = ""

    def settings_of(self, qualified_name: str) -> LakeTableConfig:
        """Return the settings of a table: of the first pattern that matches its name, else the defaults.

        Each batch asks several times for each of its tables, so that the names are matched once.
        """
        found = self._settings.get(qualified_name)
        if found is None:
            if len(self._settings) >= NAMES_MAX:
                self._settings.clear()
            found = next((one for one in self.tables if matches(qualified_name, [one.pattern])), ALL_TABLES)
            self._settings[qualified_name] = found
        return found

    def __getstate__(self) -> dict[str, object]:
        """Return the fields alone: each task of an executor has the configuration, and threads add names meanwhile."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def _settings(self) -> dict[str, LakeTableConfig]:
        return {}


DEFAULT_LAKE = LakeConfig()
_STORE_PREFIX, _VARIABLES = "store_", "TIDEMARK_LAKE__"


def store_environment(config: LakeConfig) -> dict[str, str]:
    """Return the options of the object store as environment variables, for another program; no value is a secret."""
    options = {one.name: getattr(config, one.name) for one in fields(config) if one.name.startswith(_STORE_PREFIX)}
    return {
        f"{_VARIABLES}{name.upper()}": "true" if value is True else str(value)
        for name, value in options.items()
        if value
    }
