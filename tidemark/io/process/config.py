"""The sections of the configuration, with defaults and bounds, as frozen dataclasses.

`conf/tidemark.toml` lists every key with meaning, unit, default and bound; a test compares names and defaults.
`tidemark.io.process.config_loading` reads it.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from tidemark.engine.selection import Selection
from tidemark.io.process.config_reference import CONFIG_REFERENCE
from tidemark.io.process.lake_config import LakeConfig
from tidemark.io.process.plugin_config import BUILT_IN_CONSUMERS, SECTIONS, TRANSFORMS, Options
from tidemark.io.state.locking.heartbeat import WATCHDOG_S_DEFAULT, WATCHDOG_S_MIN
from tidemark.model.errors import ConfigError
from tidemark.model.mapping import TypeMapping

RETURN_LAG_SHARE_MAX = 0.25  # of the ring: how far the archiver may be behind when the sidecar requests the return
RING_SEGMENTS_MIN = 2  # for a node with an archive
WORKERS_MAX = 256  # of a pool
BUFFER_BYTES_MIN, BUFFER_BYTES_MAX = 1 << 16, 1 << 40  # of unfinished and unconfirmed changes
PLUGIN_SECTIONS = frozenset({*SECTIONS, TRANSFORMS})
STANDARD_OUTPUT = "-"  # as deliver.jsonl_file
Bytes = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Origin = Annotated[str, Meta(pattern=r"^(any|[1-9][0-9]{0,4})$")]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,63}$")]


class BadConfig(ConfigError):
    """An unusable configuration; the message names the key."""

    hint = f"{CONFIG_REFERENCE} describes every key with unit, default and bound"


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
    busy_linger_ms: Annotated[float, Meta(ge=0, le=60_000)] = 20.0
    unconfirmed_bytes_max: Annotated[int, Meta(ge=BUFFER_BYTES_MIN, le=BUFFER_BYTES_MAX)] = 256 << 20
    confirm_ms: Annotated[float, Meta(ge=0, le=1000)] = 50.0
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
    buffer_bytes: Annotated[int, Meta(ge=BUFFER_BYTES_MIN, le=BUFFER_BYTES_MAX)] = 64 << 20


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

    bytes_max: Annotated[int, Meta(ge=1 << 20, le=1 << 42)] = 4 << 30  # NB: 16 times as much address space is mapped


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
    base_backup: str = ""


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
