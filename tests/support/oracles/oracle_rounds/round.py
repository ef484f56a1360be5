"""One round: a separate cluster, random sessions on it, both decoders over its WAL, and the comparison."""

import re
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from tests.support.lakes.replica import ORDINARY_TABLE, Replicating, differences
from tests.support.oracles.oracle import (
    OurSide,
    ServerCannotDecode,
    ServerSide,
    assert_same_lines,
    emit_fence,
    ensure_role,
    without_other_values,
)
from tests.support.oracles.oracle_rounds.evidence import Facts, keep
from tests.support.oracles.oracle_rounds.plan import RoundPlan
from tests.support.servers.postgres import Cluster, new_cluster
from tests.support.workloads.random_sessions.crew import Crew
from tests.support.workloads.random_sessions.objects import load_for
from tests.support.workloads.workloads import choices
from tidemark.decode.catalog.history import dump_base
from tidemark.io.host.spill import SpillFolder
from tidemark.model.errors import TidemarkError
from tidemark.model.lsn import FullXid
from tidemark.model.snapshot import Snapshot
from tidemark.runtime.seed.initialise import base_of

DATABASE = "random"
LOAD_BEFORE_SEED = 0.15  # share of a round's time, if the seed runs under load
READ_S = 0.1


class RoundOutcome(Enum):
    """The outcome of a round."""

    IDENTICAL = "identical"
    DIFFERENT = "different"
    WE_CANNOT_DECODE = "our decoder ended by itself"
    SERVER_CANNOT_DECODE = "the server's decoder ended by itself"
    SERVER_DOWN = "the server did not start again"


@dataclass(frozen=True, slots=True)
class RoundVerdict:
    """The result of a round; `reported` describes a failure, `kept` names its folder."""

    plan: RoundPlan
    outcome: RoundOutcome
    lines: int  # compared
    transactions: int  # scripts started
    replicas: int = 0  # tables equal to a replica built from events alone
    reported: str = ""
    kept: Path | None = None

    @property
    def is_ours(self) -> bool:
        """Return whether our decoder is wrong."""
        return self.outcome in (RoundOutcome.DIFFERENT, RoundOutcome.WE_CANNOT_DECODE)

    def __str__(self) -> str:
        counts = f"{self.lines} lines of {self.transactions} transactions, {self.replicas} replicas"
        reported = [f"{self.plan}: {self.outcome.value}, {counts}"]
        if self.outcome is not RoundOutcome.IDENTICAL:
            reported += [self.reported, f"  again: {self.plan.command}"]
        if self.kept is not None:
            reported.append(f"  the same WAL: scripts/oracle --replay {self.kept}")
        return "\n".join(reported)


class RoundReplica(Replicating):
    """Our side, with a replica fed by its output."""

    ROWS_MAX = 1000


@dataclass
class Round:
    """Both sides over one cluster, and the load."""

    plan: RoundPlan
    node: Cluster
    server: ServerSide
    crew: Crew
    ours: OurSide
    base: bytes
    fence: str = ""
    replicas: int = 0

    def run(self, keep_in: Path) -> RoundVerdict:
        """Run the load to its end and compare; keep the files if anything is wrong."""
        wrong, reported = self._followed()
        self.crew.stop()
        expected, failed = self._server_lines() if self.node.running else ([], None)
        if wrong is RoundOutcome.WE_CANNOT_DECODE and failed is not None and is_lost_to_both(reported, str(failed)):
            wrong, reported = self._compared_up_to_loss(expected, f"{failed}; {reported}")
        if wrong is None:
            wrong, reported = self._compared(expected, is_beginning=failed is not None)
        if wrong is None and failed is not None:
            wrong, reported = RoundOutcome.SERVER_CANNOT_DECODE, str(failed)
        outcome = wrong or RoundOutcome.IDENTICAL
        verdict = RoundVerdict(self.plan, outcome, len(expected), self.crew.transactions, self.replicas, reported)
        if wrong is None:
            return verdict
        facts = Facts(
            command=self.plan.command,
            database=DATABASE,
            database_oid=self.ours.oid(DATABASE),
            segment_bytes=self.ours.seed.node.segment_bytes,
            snapshot=str(self.ours.changes.snapshot or ""),
            begin_lsn=self.ours.changes.begin_lsn,
            fence=self.fence,
            server_failed=failed is not None,
        )
        keep(keep_in, self.node, self.base, facts, log=self.crew.log(), server=expected, ours=self.ours)
        return replace(verdict, kept=keep_in)

    def _followed(self) -> tuple[RoundOutcome | None, str]:
        try:
            self._follow()
        except TidemarkError as error:
            return RoundOutcome.WE_CANNOT_DECODE, f"{type(error).__name__}: {error}"
        except AssertionError as error:
            return (RoundOutcome.DIFFERENT if self.node.running else RoundOutcome.SERVER_DOWN), str(error)
        return None, ""

    def _follow(self) -> None:
        """Follow the load, stop the server as planned, and read both sides to the end."""
        spans = len(self.plan.stops) + 1
        for number in range(spans):
            follow(self.ours, self.plan.seconds / spans)
            if number < len(self.plan.stops):
                self.node.restart(self.plan.stops[number])
        self.crew.stop()
        self.ours.settle()
        fence = emit_fence(self.node, DATABASE)
        self.ours.read_until(fence)
        self.fence = fence

    def _server_lines(self) -> tuple[list[str], ServerCannotDecode | None]:
        failed = None
        try:
            lines = self.server.lines()
        except ServerCannotDecode as error:
            lines, failed = error.lines, error
        snapshot = self.ours.changes.snapshot
        return (
            begun_after(snapshot, lines) if self.plan.under_load and isinstance(snapshot, Snapshot) else lines
        ), failed

    def _compared(self, expected: Sequence[str], *, is_beginning: bool) -> tuple[RoundOutcome | None, str]:
        found = self.ours.lines[self.ours.oid(DATABASE)]
        try:
            assert_equal(str(self.plan), expected, found[: len(expected)] if is_beginning else found)
            self.ours.check_catalogs(str(self.plan))
            self._check_replicas()
        except AssertionError as error:
            return RoundOutcome.DIFFERENT, str(error)
        except TidemarkError as error:
            return RoundOutcome.WE_CANNOT_DECODE, f"{type(error).__name__}: {error}"
        return None, ""

    def _compared_up_to_loss(self, expected: Sequence[str], reported: str) -> tuple[RoundOutcome, str]:
        found = self.ours.lines[self.ours.oid(DATABASE)]
        stop = min(len(expected), len(found))
        try:
            assert_equal(str(self.plan), expected[:stop], found[:stop])
        except AssertionError as error:
            return RoundOutcome.DIFFERENT, str(error)
        return RoundOutcome.SERVER_CANNOT_DECODE, reported

    def _check_replicas(self) -> None:
        """Compare the replicas, built from events alone, with the tables."""
        if not isinstance(self.ours, Replicating):
            return
        for table in self.ours.flushed().values():
            if table.relation.kind == ORDINARY_TABLE and not table.is_lost:
                bad = differences(self.node, DATABASE, table)
                assert not bad, f"{self.plan}: the replica differs: {'; '.join(bad)}"
                self.replicas += 1


def run_round(plan: RoundPlan, keep_in: Path) -> RoundVerdict:
    """Run one round on a new cluster."""
    with ExitStack() as stack:
        node = stack.enter_context(new_cluster(plan.major, plan.settings, initdb=plan.initdb))
        if plan.compression in choices(node, "wal_compression"):
            node.configure(wal_compression=plan.compression)
        node.sql(f"CREATE DATABASE {DATABASE} ENCODING '{plan.encoding}' TEMPLATE template0")
        ensure_role(node)
        server = ServerSide(node, DATABASE)
        messages = not plan.under_load
        load = load_for(node, plan.random_seed, messages=messages, rewrites=plan.rewrites, encoding=plan.encoding)
        crew = Crew(node, DATABASE, load, plan.sessions)
        if plan.under_load:
            stack.enter_context(crew)
            time.sleep(plan.seconds * LOAD_BEFORE_SEED)
        spill = SpillFolder(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tm-spill-"))))
        try:
            side = RoundReplica if plan.has_replica else OurSide
            ours = side(node, [DATABASE], memory_bytes=plan.memory_bytes, spill=spill)
        except TidemarkError as error:
            return RoundVerdict(
                plan, RoundOutcome.WE_CANNOT_DECODE, 0, crew.transactions, reported=f"the seed: {error!r}"
            )
        stack.callback(ours.changes.close)
        base = dump_base(base_of(ours.seed))
        if not plan.under_load:
            ours.settle()
            server.lines()  # only the seed's own message so far
            stack.enter_context(crew)
        return Round(plan, node, server, crew, ours, base).run(keep_in)


def is_lost_to_both(ours: str, servers: str) -> bool:
    """Return whether both decoders miss the relation of the same file: the server lost its row in pg_class."""
    lost = re.search(r"in file \d+/(\d+/\d+), which no relation has", ours)
    return lost is not None and re.search(rf'could not map file\w+ "base/{lost[1]}"', servers) is not None


def assert_equal(what: str, expected: Sequence[str], found: Sequence[str]) -> None:
    """Fail with the first differing line, except for the closed list."""
    assert_same_lines(what, list(map(without_other_values, expected)), list(map(without_other_values, found)))


def follow(ours: OurSide, seconds: float) -> None:
    """Read the stream for a while."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for decoded in ours.changes.read(READ_S):
            ours.receive(decoded)


def begun_after(snapshot: Snapshot, lines: Sequence[str]) -> list[str]:
    """Return the lines of the transactions that are not visible in `snapshot`."""
    kept: list[str] = []
    wanted = False
    for line in lines:
        if found := re.match(r"BEGIN (\d+)$", line):
            wanted = not snapshot.sees(FullXid(int(found[1])))  # a young cluster: epoch 0
        if wanted:
            kept.append(line)
    return kept
