"""Configuration: TOML, then the environment, into frozen dataclasses; an unknown key is an error.

`conf/tidemark.toml` lists every key with meaning, unit, default and bound; a test compares names and defaults.
`TIDEMARK_<SECTION>__<KEY>` overrides a key (two underscores between them; lists are separated by commas). Secrets are
never keys: passwords come from PGPASSFILE or a service file, as libpq reads them.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import field, fields
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal, get_origin, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from tidemark.engine.ring import RING_BYTES_MIN
from tidemark.engine.selection import Selection, matches
from tidemark.io.host.local_path import local_path
from tidemark.io.state.heartbeat import WATCHDOG_S_DEFAULT, WATCHDOG_S_MIN
from tidemark.model.errors import ConfigError
from tidemark.model.mapping import TypeMapping

ENVIRONMENT_PREFIX = "TIDEMARK_"
_SEPARATOR = "__"
RETURN_LAG_SHARE_MAX = 0.25  # of the ring: how far the archiver may be behind when the sidecar requests the return
RING_SEGMENTS_MIN = 2  # for a node with an archive
_STRICT = ConfigDict(extra="forbid", defer_build=True)  # pydantic need not build validators for single sections

Assigned = Mapping[str, Mapping[str, object]]
Bytes = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Origin = Annotated[str, Field(pattern=r"^(any|[1-9][0-9]{0,4})$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,63}$")]


class BadConfig(ConfigError):
    """An unusable configuration; the message names the key."""

    hint = "conf/tidemark.toml describes every key with unit, default and bound"


@dataclass(frozen=True, config=_STRICT)
class CaptureConfig:
    """What is captured, and from where."""

    name: Name = "main"
    dsn: str = ""
    group: str = ""


@dataclass(frozen=True, config=_STRICT)
class SelectConfig:
    """Which databases and tables."""

    databases: tuple[str, ...] = ("*",)
    tables: tuple[str, ...] = ("*.*",)
    exclude_tables: tuple[str, ...] = ()
    exclude_databases: tuple[str, ...] = ()
    partition_roots: tuple[str, ...] = ()
    exclude_origins: tuple[Origin, ...] = ()
    messages: tuple[str, ...] = ("*",)

    def selection(self) -> Selection:
        """Return the patterns for the engine."""
        return Selection(
            self.databases,
            self.tables,
            self.exclude_tables,
            self.exclude_databases,
            self.partition_roots,
            self.exclude_origins,
            self.messages,
        )


@dataclass(frozen=True, config=_STRICT)
class RingConfig:
    """The bounded buffer of received WAL."""

    bytes_max: Annotated[int, Field(ge=0, le=1 << 40)] = 0  # 0: derived from the segment size
    reconnect_free_share: Annotated[float, Field(gt=0, le=1)] = 0.25


@dataclass(frozen=True, config=_STRICT)
class DecodeConfig:
    """Decoding, and the memory for decoded changes."""

    memory_bytes: Annotated[int, Field(ge=1 << 20, le=1 << 40)] = 256 << 20
    queue_bytes: Annotated[int, Field(ge=1 << 20, le=1 << 40)] = 64 << 20


@dataclass(frozen=True, config=_STRICT)
class TypesConfig(TypeMapping):
    """The Arrow types of values."""

    def mapping(self) -> TypeMapping:
        """Return the choices for the codecs."""
        return TypeMapping(self.decimals, self.binary, self.intervals, self.time_precision, self.out_of_range)


@dataclass(frozen=True, config=_STRICT)
class DeliverConfig:
    """How changes are grouped and delivered."""

    consumer: Literal["outbox", "jsonl", "null"] = "outbox"
    jsonl_file: str = ""
    transactions: bool = False
    group_rows_max: Annotated[int, Field(ge=1, le=1 << 24)] = 50_000
    group_bytes_max: Annotated[int, Field(ge=1 << 16, le=1 << 30)] = 16 << 20
    rate_max: Annotated[float, Field(ge=0, le=1_000_000)] = 200.0
    linger_ms: Annotated[float, Field(ge=0, le=60_000)] = 5.0
    unconfirmed_bytes_max: Annotated[int, Field(ge=1 << 16, le=1 << 40)] = 256 << 20
    idle_pointer_s: Seconds = 5.0
    stop_s: Seconds = 10.0
    alive_s: Seconds = 5.0
    hang_s: Seconds = 300.0
    retries_max: Annotated[int, Field(ge=0, le=1000)] = 5


@dataclass(frozen=True, config=_STRICT)
class OutboxConfig:
    """The durable queue for Spark."""

    bytes_max: Annotated[int, Field(ge=1 << 20, le=1 << 44)] = 4 << 30


@dataclass(frozen=True, config=_STRICT)
class ArchiveConfig:
    """Archived WAL, which the archiver reads."""

    folder: str = ""
    filled_by: Literal["archive_command", "pg_receivewal"] = "archive_command"
    program: str = ""
    switch_s: Seconds = 60.0
    keep_bytes: Bytes = 0
    hold_s: Seconds = 60.0
    hold_bytes: Annotated[int, Field(ge=0, le=1 << 44)] = 4 << 30
    free_bytes_min: Bytes = 1 << 30


@dataclass(frozen=True, config=_STRICT)
class RealtimeConfig:
    """The return from ARCHIVE to REALTIME."""

    automatic_return: bool = True
    return_first_s: Seconds = 5.0
    return_max_s: Seconds = 300.0
    away_s: Seconds = 30.0
    archive_wait_s: Seconds = 60.0


@dataclass(frozen=True, config=_STRICT)
class MarkersConfig:
    """The markers that the capture writes into WAL."""

    dsn: str = ""
    key_file: str = ""
    confirm_s: Seconds = 10.0
    min_bytes: Annotated[int, Field(ge=0, le=1 << 40)] = 0  # 0: one segment


@dataclass(frozen=True, config=_STRICT)
class StandbyConfig:
    """The sidecar at a node that is a standby."""

    follow: bool = False
    lake: str = ""
    unmarked_bytes_max: Annotated[int, Field(ge=1 << 20, le=1 << 44)] = 16 << 30


@dataclass(frozen=True, config=_STRICT)
class LakeTableConfig:
    """Settings of the lake's tables that match a pattern."""

    pattern: Annotated[str, Field(min_length=1)]
    log_keep_days: Annotated[int, Field(ge=0, le=36_500)] = 0
    file_keep_hours: Annotated[int, Field(ge=0, le=8_784)] = 0


ALL_TABLES = LakeTableConfig("*.*")


@dataclass(frozen=True, config=_STRICT)
class LakeConfig:
    """The lake, as the pipeline writes it."""

    tables: tuple[LakeTableConfig, ...] = ()

    def settings_of(self, qualified_name: str) -> LakeTableConfig:
        """Return the settings of a table: of the first pattern that matches its name, else the defaults."""
        return next((one for one in self.tables if matches(qualified_name, [one.pattern])), ALL_TABLES)


DEFAULT_LAKE = LakeConfig()


@dataclass(frozen=True, config=_STRICT)
class HistoryConfig:
    """The catalog history."""

    base_every_bytes: Annotated[int, Field(ge=1 << 20, le=1 << 44)] = 1 << 30
    journal_file_bytes: Annotated[int, Field(ge=1 << 16, le=1 << 40)] = 16 << 20


@dataclass(frozen=True, config=_STRICT)
class CopyConfig:
    """The first copy of existing rows."""

    enabled: bool = True
    spool_bytes: Annotated[int, Field(ge=1 << 20, le=1 << 44)] = 16 << 30


@dataclass(frozen=True, config=_STRICT)
class SeedConfig:
    """The seed of the catalog mirror."""

    wait_s: Seconds = 300.0
    databases: tuple[str, ...] = ()

    def follows(self, database: str) -> bool:
        """Return whether the catalogs of an uncaptured database are read, since a rename may select it later."""
        return Selection(self.databases).selects_database(database)


@dataclass(frozen=True, config=_STRICT)
class RetryConfig:
    """Reconnecting to an unreachable node."""

    first_s: Seconds = 0.3
    max_s: Seconds = 10.0


@dataclass(frozen=True, config=_STRICT)
class MetricsConfig:
    """The Prometheus endpoint."""

    enabled: bool = True
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 9748
    archiver_port: Annotated[int, Field(ge=0, le=65_535)] = 9749


@dataclass(frozen=True, config=_STRICT)
class LogConfig:
    """Log lines."""

    format: Literal["json", "console"] = "json"
    level: Literal["debug", "info", "warning", "error"] = "info"


@dataclass(frozen=True, config=_STRICT)
class WatchdogConfig:
    """Heartbeats and the watchdog."""

    watchdog_s: Annotated[float, Field(ge=WATCHDOG_S_MIN, le=86_400)] = WATCHDOG_S_DEFAULT
    restart_s: Seconds = 3.0


@dataclass(frozen=True, config=_STRICT)
class Config:
    """The whole configuration."""

    capture: CaptureConfig = field(default_factory=CaptureConfig)
    select: SelectConfig = field(default_factory=SelectConfig)
    ring: RingConfig = field(default_factory=RingConfig)
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    types: TypesConfig = field(default_factory=TypesConfig)
    deliver: DeliverConfig = field(default_factory=DeliverConfig)
    outbox: OutboxConfig = field(default_factory=OutboxConfig)
    archive: ArchiveConfig = field(default_factory=ArchiveConfig)
    realtime: RealtimeConfig = field(default_factory=RealtimeConfig)
    markers: MarkersConfig = field(default_factory=MarkersConfig)
    standby: StandbyConfig = field(default_factory=StandbyConfig)
    lake: LakeConfig = field(default_factory=LakeConfig)
    history: HistoryConfig = field(default_factory=HistoryConfig)
    copy: CopyConfig = field(default_factory=CopyConfig)
    seed: SeedConfig = field(default_factory=SeedConfig)
    retry: RetryConfig = field(default_factory=RetryConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    log: LogConfig = field(default_factory=LogConfig)
    watchdog: WatchdogConfig = field(default_factory=WatchdogConfig)

    def ring_bytes(self, segment_bytes: int) -> int:
        """Return the ring's capacity; the default max(256 MB, 16 segments) holds all WAL that is not archived yet.

        Raise `BadConfig` if the configured capacity is too small for the node's segments.
        """
        if not self.ring.bytes_max:
            return max(256 << 20, 16 * segment_bytes)
        # At a return the ring must hold the stream until the marker's segment, after a switch, is archived.
        least = RING_SEGMENTS_MIN * segment_bytes
        if self.has_archive and self.ring.bytes_max < least:
            raise BadConfig(
                f"ring.bytes_max is {self.ring.bytes_max}: with an archive it is at least {least}, "
                f"{RING_SEGMENTS_MIN} WAL segments of the node"
            )
        return self.ring.bytes_max

    def return_lag_bytes_max(self, segment_bytes: int) -> int:
        """Return how far the archiver may be behind the node at a return; the current segment is never archived yet."""
        return int(self.ring_bytes(segment_bytes) * RETURN_LAG_SHARE_MAX) + segment_bytes

    @property
    def has_archive(self) -> bool:
        """Return whether there is an archive to fail over to."""
        return bool(self.archive.folder)


_CONFIG = TypeAdapter(Config)
_SECTIONS = tuple(section.name for section in fields(Config))


def load_config(path: Path | None, environment: Mapping[str, str], assigned: Assigned | None = None) -> Config:
    """Return the configuration of `path` (None: all defaults) with the overrides of `environment`.

    `assigned`: values by section and key, which replace defaults.
    """
    text = ""
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadConfig(f"cannot read the configuration {path}: {error}") from error
    return parse_config(text, environment, where=str(path or "the defaults"), assigned=assigned or {})


def parse_config(text: str, environment: Mapping[str, str], *, where: str, assigned: Assigned | None = None) -> Config:
    """Return the configuration of a TOML text with the overrides of `environment`."""
    try:
        given: dict[str, object] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadConfig(f"{where} is not TOML: {error}") from error
    for section, values in (assigned or {}).items():
        table = given.setdefault(section, {})
        if isinstance(table, dict):
            given[section] = {**values, **table}
    for section, key, value in _overrides(environment):
        table = given.setdefault(section, {})
        if isinstance(table, dict):
            table[key] = value
    for section in _SECTIONS:  # NB: pydantic would build a validator for each omitted section
        given.setdefault(section, {})
    try:
        config = _CONFIG.validate_python(given)
    except ValidationError as error:
        raise BadConfig(f"{where}: {_faults_text(error)}") from error
    _check_bounds_between_keys(config, where)
    return config


def _overrides(environment: Mapping[str, str]) -> list[tuple[str, str, object]]:
    found: list[tuple[str, str, object]] = []
    lists = _list_keys()
    for variable in sorted(environment):
        name = variable.removeprefix(ENVIRONMENT_PREFIX)
        section, separator, key = name.partition(_SEPARATOR)
        if name == variable or not separator:
            continue
        where, value = (section.lower(), key.lower()), environment[variable]
        parts = tuple(part.strip() for part in value.split(",") if part.strip())
        found.append((*where, parts if where in lists else value))
    return found


def _list_keys() -> frozenset[tuple[str, str]]:
    """Return section and key of each field whose type is a tuple."""
    sections = get_type_hints(Config)
    return frozenset(
        (section, key)
        for section, fields in sections.items()
        for key, kind in get_type_hints(fields).items()
        if get_origin(kind) is tuple
    )


def _faults_text(error: ValidationError) -> str:
    """Return the errors by key, without the values: one may be a secret in the wrong place."""
    faults: list[str] = []
    for fault in error.errors(include_input=False, include_url=False):
        key = ".".join(str(part) for part in fault["loc"])
        unknown = fault["type"] in ("unexpected_keyword_argument", "extra_forbidden")
        faults.append(f"unknown key {key}" if unknown else f"{key}: {fault['msg']}")
    return "; ".join(faults)


def _check_bounds_between_keys(config: Config, where: str) -> None:
    if config.deliver.group_bytes_max * 4 > config.outbox.bytes_max:
        # Spark requests at most half of the outbox at once, and confirms it only when it plans the next batch.
        raise BadConfig(f"{where}: deliver.group_bytes_max: at most a quarter of outbox.bytes_max")
    if 0 < config.ring.bytes_max < RING_BYTES_MIN:
        raise BadConfig(
            f"{where}: ring.bytes_max is {config.ring.bytes_max}: at least {RING_BYTES_MIN}, or 0 for the default"
        )
    if config.deliver.consumer == "jsonl" and not config.deliver.jsonl_file:
        raise BadConfig(f"{where}: deliver.jsonl_file: the jsonl consumer needs it (`-` is standard output)")
    _check_standby(config, where)
    patterns = [one.pattern for one in config.lake.tables]
    for number, pattern in enumerate(patterns):
        if pattern in patterns[:number]:
            raise BadConfig(f"{where}: lake.tables.{number}.pattern: {pattern} is in an earlier entry, which applies")
    for key, path in (
        ("archive.folder", config.archive.folder),
        ("archive.program", config.archive.program),
        ("markers.key_file", config.markers.key_file),
        ("standby.lake", config.standby.lake),
    ):
        local_path(path, f"{where}: {key}")
        if path and not Path(path).is_absolute():
            raise BadConfig(
                f"{where}: {key}: must be an absolute path: daemons, cdcctl and the server have different "
                "working directories"
            )
    for section, first, longest in (
        ("retry.", config.retry.first_s, config.retry.max_s),
        ("realtime.return_", config.realtime.return_first_s, config.realtime.return_max_s),
    ):
        if first > longest:
            raise BadConfig(f"{where}: {section}first_s: at most {section}max_s")


def _check_standby(config: Config, where: str) -> None:
    if config.standby.lake and not config.standby.follow:
        raise BadConfig(f"{where}: standby.lake requires standby.follow = true")
    if not config.standby.follow:
        return
    if not config.markers.key_file:
        raise BadConfig(
            f"{where}: standby.follow: markers.key_file must name the key of the markers of the delivering capture",
            hint="create one key (openssl rand -hex 32), put it on every node, and set markers.key_file to its file",
        )
    if config.standby.lake and config.deliver.consumer != "outbox":
        raise BadConfig(f"{where}: standby.lake: a lake is filled from the outbox, not by {config.deliver.consumer}")
    # libpq is loaded here only: most programs that read a configuration never connect.
    if "," in import_module("tidemark.io.node.dsn").parse_dsn(config.capture.dsn).get("host", ""):
        raise BadConfig(
            f"{where}: standby.follow: capture.dsn names several hosts",
            hint="set the one node that this sidecar follows while it is a standby; a sidecar that always connects "
            "to the primary, by target_session_attrs, needs no standby.follow",
        )
