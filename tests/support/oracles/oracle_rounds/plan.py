"""The settings of a round, from a seed and a number alone: number of sessions, server settings, server stops."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from tests.support.oracles.oracle import SQL_ASCII
from tests.support.servers.postgres import StopMode

KINDS = 4  # kinds in rotation: quiet, stopped, seeded under load, stopped and seeded under load
SMALL_MEMORY_BYTES = 1 << 20  # so that transactions spill
CHECKED = ("", "", "heap, heap2")  # wal_consistency_checking: images that redo must not apply
AMPLE_MEMORY_BYTES = 256 << 20
ENCODINGS = ("UTF8", "UTF8", "UTF8", "LATIN1", "WIN1252", "EUC_JP", SQL_ASCII)  # of the database
FIXED: Mapping[str, str] = {
    "autovacuum_naptime": "1s",
    "checkpoint_timeout": "30s",
    "max_connections": "40",
    "max_prepared_transactions": "40",
    "wal_keep_size": "8GB",  # the WAL of a failed round must begin at the seed
}
VARIED: Mapping[str, tuple[str, ...]] = {
    "max_wal_size": ("64MB", "1GB"),
    "track_commit_timestamp": ("off", "on"),
    "logical_decoding_work_mem": ("64kB", "64MB"),
    "synchronous_commit": ("on", "off"),
}


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """Round `number` of a campaign."""

    seed: int
    number: int
    major: int
    seconds: float
    sessions: int
    stops: tuple[StopMode, ...]
    under_load: bool  # the seed runs while the sessions work
    rewrites: float
    memory_bytes: int
    settings: Mapping[str, str]
    initdb: tuple[str, ...]
    compression: str  # of page images, if the server supports it
    encoding: str

    @property
    def has_replica(self) -> bool:
        """Return whether a replica of the tables is possible: all rows are seen, and their text is valid."""
        return not self.under_load and self.encoding != SQL_ASCII

    @property
    def random_seed(self) -> str:
        """The seed of all random numbers of the round."""
        return f"{self.seed} round {self.number}"

    @property
    def command(self) -> str:
        """The command that plans the same round again."""
        return (
            f"scripts/oracle --major {self.major} --seed {self.seed} --round {self.number} --seconds {self.seconds:g}"
        )

    def __str__(self) -> str:
        stops = ", ".join(stop.name.lower() for stop in self.stops)
        traits = (
            f"{self.sessions} sessions",
            f"stops: {stops}" if stops else "no stop",
            "seeded under load" if self.under_load else "seeded before",
            f"rewrites {self.rewrites:.0%}",
            f"memory {self.memory_bytes >> 20} MiB",
            self.encoding,
        )
        return f"round {self.number}: " + "; ".join(traits)


def planned(seed: int, number: int, major: int, seconds: float) -> RoundPlan:
    """Return round `number`, counted from 0."""
    dice = random.Random(f"{seed} plan {number}")
    stops = dice.choices((StopMode.IMMEDIATE, StopMode.IMMEDIATE, StopMode.FAST), k=1 + dice.randrange(3))
    settings = {**FIXED, **{name: dice.choice(values) for name, values in VARIED.items()}}
    is_stopped = number % 2 == 1
    if not is_stopped:  # NB: recovery on 16 fails in its check of new pages
        settings["wal_consistency_checking"] = dice.choice(CHECKED)
    if major >= 18:  # NB: its test_decoding crashes at the rollback of a transaction larger than this
        settings["logical_decoding_work_mem"] = "1GB"
    return RoundPlan(
        seed=seed,
        number=number,
        major=major,
        seconds=seconds,
        sessions=dice.choice((3, 4, 6)),
        stops=tuple(stops) if is_stopped else (),
        under_load=number % KINDS >= KINDS // 2,
        rewrites=dice.choice((0.0, 0.01, 0.05)),
        memory_bytes=dice.choice((SMALL_MEMORY_BYTES, AMPLE_MEMORY_BYTES)),
        settings=settings,
        initdb=dice.choice(((), ("--wal-segsize=1",), ("--data-checksums",))),
        compression=dice.choice(("off", "pglz", "lz4", "zstd")),
        encoding=dice.choice(ENCODINGS),
    )
