"""Configuration: TOML, then the environment, into frozen dataclasses; an unknown key is an error.

`conf/tidemark.toml` lists every key with meaning, unit, default and bound; a test compares names and defaults.
`TIDEMARK_<SECTION>__<KEY>` overrides a key (two underscores between them; lists are separated by commas). Secrets are
never keys: passwords come from PGPASSFILE or a service file, as libpq reads them.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from tidemark.engine.ring import RING_BYTES_MIN
from tidemark.engine.selection import Selection
from tidemark.io.host.local_path import is_in_store, lake_location, local_path
from tidemark.io.process.config_faults import fault
from tidemark.io.process.lake_config import LakeConfig
from tidemark.io.process.plugin_config import BUILT_IN_CONSUMERS, SECTIONS, TRANSFORMS, Options, plugin_faults
from tidemark.io.state.locking.heartbeat import WATCHDOG_S_DEFAULT, WATCHDOG_S_MIN
from tidemark.model.errors import ConfigError
from tidemark.model.mapping import TypeMapping

ENVIRONMENT_PREFIX = "TIDEMARK_"
_SEPARATOR = "__"
RETURN_LAG_SHARE_MAX = 0.25  # of the ring: how far the archiver may be behind when the sidecar requests the return
RING_SEGMENTS_MIN = 2  # for a node with an archive
_BOOLEANS = {
    **dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True),
    **dict.fromkeys(("0", "off", "f", "false", "n", "no"), False),
}

WORKERS_MAX = 256  # of a pool
PLUGIN_SECTIONS = frozenset({*SECTIONS, TRANSFORMS})
Assigned = Mapping[str, Mapping[str, object]]
Bytes = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Origin = Annotated[str, Meta(pattern=r"^(any|[1-9][0-9]{0,4})$")]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,63}$")]


class BadConfig(ConfigError):
    """An unusable configuration; the message names the key."""

    hint = "conf/tidemark.toml describes every key with unit, default and bound"


@dataclass(frozen=True)
class CaptureConfig:
    """What is captured, and from where."""

    name: Name = "main"
    dsn: str = ""
    group: str = ""


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class RingConfig:
    """The bounded buffer of received WAL."""

    bytes_max: Annotated[int, Meta(ge=0, le=1 << 40)] = 0  # 0: derived from the segment size
    reconnect_free_share: Annotated[float, Meta(gt=0, le=1)] = 0.25


@dataclass(frozen=True)
class DecodeConfig:
    """Decoding, and the memory for decoded changes."""

    memory_bytes: Annotated[int, Meta(ge=1 << 20, le=1 << 40)] = 256 << 20
    queue_bytes: Annotated[int, Meta(ge=1 << 20, le=1 << 40)] = 64 << 20


@dataclass(frozen=True)
class TypesConfig(TypeMapping):
    """The Arrow types of values."""

    def mapping(self) -> TypeMapping:
        """Return the choices for the codecs."""
        return TypeMapping(self.decimals, self.binary, self.intervals, self.time_precision, self.out_of_range)


@dataclass(frozen=True)
class DeliverConfig:
    """How changes are grouped and delivered."""

    consumer: Annotated[str, Meta(min_length=1)] = "outbox"
    serializer: str = ""
    jsonl_file: str = ""
    transactions: bool = False
    group_rows_max: Annotated[int, Meta(ge=1, le=1 << 24)] = 50_000
    group_bytes_max: Annotated[int, Meta(ge=1 << 16, le=1 << 30)] = 16 << 20
    rate_max: Annotated[float, Meta(ge=0, le=1_000_000)] = 200.0
    linger_ms: Annotated[float, Meta(ge=0, le=60_000)] = 5.0
    unconfirmed_bytes_max: Annotated[int, Meta(ge=1 << 16, le=1 << 40)] = 256 << 20
    idle_pointer_s: Seconds = 5.0
    heartbeat_s: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    stop_s: Seconds = 10.0
    alive_s: Seconds = 5.0
    hang_s: Seconds = 300.0
    retries_max: Annotated[int, Meta(ge=0, le=1000)] = 5

    @property
    def is_plugin(self) -> bool:
        """Return whether the consumer is a plug-in."""
        return self.consumer not in BUILT_IN_CONSUMERS


@dataclass(frozen=True)
class PoolConfig:
    """The pool that calls a handler."""

    workers: Annotated[int, Meta(ge=1, le=WORKERS_MAX)] = 1
    kind: Literal["threads", "processes"] = "threads"
    order: Literal["total", "key", "none"] = "total"
    buffer_bytes: Annotated[int, Meta(ge=1 << 16, le=1 << 40)] = 64 << 20


@dataclass(frozen=True)
class PoisonConfig:
    """Changes that a consumer cannot handle."""

    policy: Literal["fail", "skip", "park"] = "fail"
    parked_bytes_max: Annotated[int, Meta(ge=1 << 16, le=1 << 30)] = 64 << 20
    in_a_row_max: Annotated[int, Meta(ge=1, le=1000)] = 10  # they are kept in memory until the next success
    silence_s: Annotated[float, Meta(ge=0, le=86400)] = 60.0  # 0: a change is never parked without a success behind it


@dataclass(frozen=True)
class OutboxConfig:
    """The durable queue for Spark."""

    bytes_max: Annotated[int, Meta(ge=1 << 20, le=1 << 44)] = 4 << 30


@dataclass(frozen=True)
class ReaderConfig:
    """Readers of the outbox."""

    hold_bytes: Annotated[int, Meta(ge=0, le=1 << 44)] = 0  # 0: a quarter of the outbox


@dataclass(frozen=True)
class ArchiveConfig:
    """Archived WAL, which the archiver reads."""

    folder: str = ""
    filled_by: Literal["archive_command", "pg_receivewal"] = "archive_command"
    program: str = ""
    switch_s: Seconds = 60.0
    keep_bytes: Bytes = 0
    hold_s: Seconds = 60.0
    hold_bytes: Annotated[int, Meta(ge=0, le=1 << 44)] = 4 << 30
    free_bytes_min: Bytes = 1 << 30


@dataclass(frozen=True)
class RealtimeConfig:
    """The return from ARCHIVE to REALTIME."""

    automatic_return: bool = True
    return_first_s: Seconds = 5.0
    return_max_s: Seconds = 300.0
    away_s: Seconds = 30.0
    archive_wait_s: Seconds = 60.0


@dataclass(frozen=True)
class MarkersConfig:
    """The markers that the capture writes into WAL."""

    dsn: str = ""
    key_file: str = ""
    confirm_s: Seconds = 10.0
    min_bytes: Annotated[int, Meta(ge=0, le=1 << 40)] = 0  # 0: one segment


@dataclass(frozen=True)
class StandbyConfig:
    """The sidecar at a node that is a standby."""

    follow: bool = False
    lake: str = ""
    unmarked_bytes_max: Annotated[int, Meta(ge=1 << 20, le=1 << 44)] = 16 << 30


@dataclass(frozen=True)
class HistoryConfig:
    """The catalog history."""

    base_every_bytes: Annotated[int, Meta(ge=1 << 20, le=1 << 44)] = 1 << 30
    journal_file_bytes: Annotated[int, Meta(ge=1 << 16, le=1 << 40)] = 16 << 20


@dataclass(frozen=True)
class CopyConfig:
    """The first copy of existing rows."""

    enabled: bool = True
    spool_bytes: Annotated[int, Meta(ge=1 << 20, le=1 << 44)] = 16 << 30


@dataclass(frozen=True)
class SeedConfig:
    """The seed of the catalog mirror."""

    wait_s: Seconds = 300.0
    databases: tuple[str, ...] = ()

    def follows(self, database: str) -> bool:
        """Return whether the catalogs of an uncaptured database are read, since a rename may select it later."""
        return Selection(self.databases).selects_database(database)


@dataclass(frozen=True)
class RetryConfig:
    """Reconnecting to an unreachable node."""

    first_s: Seconds = 0.3
    max_s: Seconds = 10.0
    attempts_max: Annotated[int, Meta(ge=0, le=1_000_000)] = 0  # in a row; 0: no limit


@dataclass(frozen=True)
class MetricsConfig:
    """The Prometheus endpoint."""

    enabled: bool = True
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 9748
    archiver_port: Annotated[int, Meta(ge=0, le=65_535)] = 9749


@dataclass(frozen=True)
class ServerConfig:
    """The outbox server."""

    listen: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    token_file: str = ""
    streams_max: Annotated[int, Meta(ge=1, le=1024)] = 64
    metrics_port: Annotated[int, Meta(ge=0, le=65_535)] = 0


@dataclass(frozen=True)
class LogConfig:
    """Log lines."""

    format: Literal["json", "console"] = "json"
    level: Literal["debug", "info", "warning", "error"] = "info"


@dataclass(frozen=True)
class WatchdogConfig:
    """Heartbeats and the watchdog."""

    watchdog_s: Annotated[float, Meta(ge=WATCHDOG_S_MIN, le=86_400)] = WATCHDOG_S_DEFAULT
    restart_s: Seconds = 3.0


@dataclass(frozen=True)
class Config:
    """The whole configuration."""

    capture: CaptureConfig = field(default_factory=CaptureConfig)
    select: SelectConfig = field(default_factory=SelectConfig)
    ring: RingConfig = field(default_factory=RingConfig)
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    types: TypesConfig = field(default_factory=TypesConfig)
    deliver: DeliverConfig = field(default_factory=DeliverConfig)
    pool: PoolConfig = field(default_factory=PoolConfig)
    poison: PoisonConfig = field(default_factory=PoisonConfig)
    outbox: OutboxConfig = field(default_factory=OutboxConfig)
    reader: ReaderConfig = field(default_factory=ReaderConfig)
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
    server: ServerConfig = field(default_factory=ServerConfig)
    log: LogConfig = field(default_factory=LogConfig)
    watchdog: WatchdogConfig = field(default_factory=WatchdogConfig)
    consumer: Options = field(default_factory=dict)
    serializer: Options = field(default_factory=dict)
    transforms: tuple[Options, ...] = ()

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
    if faults := _faults(given):
        raise BadConfig(f"{where}: {'; '.join(faults)}")
    config = msgspec.convert(given, Config, strict=False)
    _check_bounds_between_keys(config, where)
    return config


def _overrides(environment: Mapping[str, str]) -> list[tuple[str, str, object]]:
    found: list[tuple[str, str, object]] = []
    for variable in sorted(environment):
        name = variable.removeprefix(ENVIRONMENT_PREFIX)
        section, separator, key = name.lower().partition(_SEPARATOR)
        if variable != name and separator:
            shape = _shapes().get(section, {}).get(key)
            found.append((section, key, _from_text(environment[variable].strip(), shape)))
    return found


def _from_text(text: str, shape: object) -> object:
    """Return a value of the environment in the form that TOML has for it; numbers remain text."""
    if get_origin(shape) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return _BOOLEANS.get(text.lower(), text) if shape is bool else text


@cache
def _shapes() -> Mapping[str, Mapping[str, object]]:
    """Return the types of all keys with their bounds, by section; those of plug-ins are not known here."""
    sections = get_type_hints(Config)
    return {
        section: get_type_hints(keys, include_extras=True)
        for section, keys in sections.items()
        if section not in PLUGIN_SECTIONS
    }


def _faults(given: Mapping[str, object]) -> list[str]:
    """Return every unknown key and every wrong value, without the value: it may be a secret in the wrong place."""
    faults = []
    for section, values in given.items():
        if section in PLUGIN_SECTIONS:
            faults += plugin_faults(section, values)
            continue
        shapes = _shapes().get(section)
        if shapes is None:
            faults.append(f"unknown key {section}")
        elif not isinstance(values, dict):
            faults.append(f"{section}: Expected a section with keys")
        else:
            unknown = [f"unknown key {section}.{key}" for key in values if key not in shapes]
            wrong = [(key, fault(values[key], shape)) for key, shape in shapes.items() if key in values]
            faults += [*unknown, *(f"{section}.{key}: {reason}" for key, reason in wrong if reason)]
    return faults


def _check_bounds_between_keys(config: Config, where: str) -> None:
    _check_outbox(config, where)
    if 0 < config.ring.bytes_max < RING_BYTES_MIN:
        raise BadConfig(
            f"{where}: ring.bytes_max is {config.ring.bytes_max}: at least {RING_BYTES_MIN}, or 0 for the default"
        )
    _check_consumer(config, where)
    _check_standby(config, where)
    _check_lake(config.lake, where)
    lake_location(config.standby.lake, f"{where}: standby.lake")
    for key, path in (
        ("archive.folder", config.archive.folder),
        ("archive.program", config.archive.program),
        ("markers.key_file", config.markers.key_file),
        ("standby.lake", "" if is_in_store(config.standby.lake) else config.standby.lake),
        ("lake.store_credentials_file", config.lake.store_credentials_file),
        ("server.tls_certificate", config.server.tls_certificate),
        ("server.tls_key", config.server.tls_key),
        ("server.token_file", config.server.token_file),
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


def _check_lake(lake: LakeConfig, where: str) -> None:
    patterns = [one.pattern for one in lake.tables]
    for number, one in enumerate(lake.tables):
        if one.pattern in patterns[:number]:
            raise BadConfig(
                f"{where}: lake.tables.{number}.pattern: {one.pattern} is in an earlier entry, which applies"
            )
        for conflict in one.conflicts():
            raise BadConfig(f"{where}: lake.tables.{number}.{conflict}")


def _check_consumer(config: Config, where: str) -> None:
    if config.deliver.consumer == "jsonl" and not config.deliver.jsonl_file:
        raise BadConfig(f"{where}: deliver.jsonl_file: the jsonl consumer needs it (`-` is standard output)")
    if config.consumer and not config.deliver.is_plugin:
        raise BadConfig(f"{where}: consumer: {config.deliver.consumer} has no options here; its keys are in [deliver]")
    if config.deliver.serializer and not config.deliver.is_plugin:
        raise BadConfig(f"{where}: deliver.serializer: {config.deliver.consumer} takes batches, not records")
    if config.serializer and not config.deliver.serializer:
        raise BadConfig(f"{where}: serializer: deliver.serializer names no serializer that has these options")


def _check_outbox(config: Config, where: str) -> None:
    if config.deliver.group_bytes_max * 4 > config.outbox.bytes_max:
        # Spark requests at most half of the outbox at once, and confirms it only when it plans the next batch.
        raise BadConfig(f"{where}: deliver.group_bytes_max: at most a quarter of outbox.bytes_max")
    if config.reader.hold_bytes * 2 > config.outbox.bytes_max:
        raise BadConfig(f"{where}: reader.hold_bytes: at most half of outbox.bytes_max")


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
