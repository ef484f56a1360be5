"""The section `[lake]`: settings of the lake's tables, by patterns of their names."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from tidemark.engine.selection import matches

MERGE_ROWS = 1_000_000  # so that the memory of a merge is bounded


class Written(StrEnum):
    """What the pipeline writes of a table."""

    BOTH = "both"
    LOG = "log"
    REPLICA = "replica"


class SchemaPolicy(StrEnum):
    """What a change of a table's columns does."""

    EVOLVE = "evolve"  # log and replica follow it
    FAIL = "fail"  # the table is paused before it


class LakeTableConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the lake's tables that match a pattern."""

    pattern: Annotated[str, Meta(min_length=1)]
    log_keep_days: Annotated[int, Meta(ge=0, le=36_500)] = 0
    file_keep_hours: Annotated[int, Meta(ge=0, le=8_784)] = 0
    write: Written = Written.BOTH
    schema_policy: SchemaPolicy = SchemaPolicy.EVOLVE
    cluster: Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(max_length=4)] = ()
    merge_rows: Annotated[int, Meta(ge=1_000, le=100_000_000)] = MERGE_ROWS


ALL_TABLES = LakeTableConfig("*.*")


@dataclass(frozen=True)
class LakeConfig:
    """The lake, as the pipeline writes it."""

    tables: tuple[LakeTableConfig, ...] = ()
    slow_write_s: Annotated[float, Meta(ge=0, le=86_400)] = 60.0
    maintain_commits: Annotated[int, Meta(ge=0, le=100_000)] = 100
    maintain_bytes: Annotated[int, Meta(ge=1 << 20, le=1 << 30)] = 64 << 20
    maintain_files: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000

    def settings_of(self, qualified_name: str) -> LakeTableConfig:
        """Return the settings of a table: of the first pattern that matches its name, else the defaults."""
        return next((one for one in self.tables if matches(qualified_name, [one.pattern])), ALL_TABLES)


DEFAULT_LAKE = LakeConfig()
