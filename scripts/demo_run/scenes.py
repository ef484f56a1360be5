"""The operations on the capture while the workload runs; each scene waits for its result, with a time limit."""

from functools import partial
from itertools import count

import psycopg

from scripts.demo_run import workload as shop
from scripts.demo_run.configuration import OUTBOX_BYTES, RING_BYTES
from scripts.demo_run.demonstration import Demonstration
from tidemark.model.lsn import Lsn
from tidemark.model.mode import Stage
from tidemark.wire.state.copy_progress import CopyPhase

CALM_SPELLS = 8
FIRST_BATCH_S_MAX = 240  # for Spark to start
SWITCHED_S_MAX = 60
CAUGHT_UP_S_MAX = 60
SPARK_BACK_S_MAX = 120
KEEPS_UP_S = 6
DEAD_S = 2  # time without an archiver
OVERFLOW_S_MAX = 60
FULL_SHARE = 0.9  # of the outbox: the next group may not fit


def wait_for_first_copy(demonstration: Demonstration) -> None:
    """Wait until the first copy is in the lake: kills before that would show nothing."""

    def is_copied() -> bool:
        copies = demonstration.store.view().copies.values()
        return len(copies) == len(shop.TABLES) and all(copy.phase is CopyPhase.DONE for copy in copies)

    with demonstration.lag.disturbed():
        demonstration.until(is_copied, "the first copy", within_s=FIRST_BATCH_S_MAX)
        _until_lake_keeps_up(demonstration, within_s=FIRST_BATCH_S_MAX)
    demonstration.print_line(
        f"[{demonstration.passed_s:5.1f} s] the rows that were there are in the lake, which keeps up now"
    )
    demonstration.work.pace(shop.TRANSACTIONS_PER_S)


def play(demonstration: Demonstration, calm_s: float) -> None:
    """Play all scenes, with pauses between them."""
    rest = partial(demonstration.run_for, calm_s / CALM_SPELLS)
    rest()
    _alter(demonstration, shop.ADD_COLUMN)
    rest()
    with demonstration.lag.disturbed():
        demonstration.operate("realtime", "off")
    rest()
    _alter(demonstration, shop.CHANGE_TYPE)
    rest()
    _kill_archiver(demonstration)
    rest()
    with demonstration.lag.disturbed():
        demonstration.operate("realtime", "on")
    rest()
    _kill_sidecar(demonstration)
    rest()
    _overflow_ring(demonstration)
    rest()


def finish(demonstration: Demonstration) -> None:
    """Stop the workload, and wait until the lake contains the whole outbox."""
    demonstration.work.stop()
    demonstration.print_line(f"[{demonstration.passed_s:5.1f} s] the workload has stopped; waiting for the lake")
    with demonstration.lag.disturbed():
        demonstration.until(lambda: not demonstration.behind(), "the lake has everything", within_s=SPARK_BACK_S_MAX)
        demonstration.lag.settle(everything=True)


def _kill_archiver(demonstration: Demonstration) -> None:
    archiver = demonstration.archiver
    with demonstration.lag.disturbed():
        demonstration.scene("SIGKILL to the archiver, which delivers")
        archiver.kill()
        demonstration.run_for(DEAD_S)
        demonstration.scene("the archiver is started again")
        archiver.start()
        _until_delivered(demonstration)


def _kill_sidecar(demonstration: Demonstration) -> None:
    sidecar = demonstration.sidecar
    _until_stage(demonstration, Stage.REALTIME)
    with demonstration.lag.disturbed():
        demonstration.scene("SIGKILL to the sidecar, which delivers")
        sidecar.kill()
        _until_stage(demonstration, Stage.ARCHIVE)
        _until_delivered(demonstration)
        demonstration.scene("the sidecar is started again")
        sidecar.start()
        _until_stage(demonstration, Stage.REALTIME)
        _until_delivered(demonstration)


def _overflow_ring(demonstration: Demonstration) -> None:
    """Stop the reader: outbox, queue and ring fill up one after the other."""
    spark = demonstration.pipeline
    _until_stage(demonstration, Stage.REALTIME)
    with demonstration.lag.disturbed():
        demonstration.scene("SIGKILL to Spark, driver and JVM, while a batch job rewrites documents")
        spark.kill()
        with psycopg.connect(demonstration.server.dsn()) as connection:
            number = count()

            def has_overflowed() -> bool:
                if demonstration.stage is not Stage.REALTIME:
                    return True
                if _has_space(demonstration):
                    shop.rewrite_documents(connection, next(number))
                return False

            demonstration.until(has_overflowed, "an overflow of the ring", within_s=OVERFLOW_S_MAX)
        demonstration.scene("Spark is started again")
        demonstration.work.pace(shop.SLOW_PER_S)
        spark.start()
        _until_stage(demonstration, Stage.REALTIME, within_s=SPARK_BACK_S_MAX)
        _until_lake_keeps_up(demonstration)
    demonstration.work.pace(shop.TRANSACTIONS_PER_S)


def _has_space(demonstration: Demonstration) -> bool:
    """Return whether to write more: the ring has space, or the outbox is full. The ring must be the last to fill up."""
    marks = demonstration.store.marks()
    if marks.ledger.byte_count > FULL_SHARE * OUTBOX_BYTES:
        return True
    return demonstration.lag.flush_lsn() - (demonstration.delivered() or Lsn(0)) < RING_BYTES // 4


def _alter(demonstration: Demonstration, statement: str) -> None:
    demonstration.scene(statement)
    with psycopg.connect(demonstration.server.dsn(), autocommit=True) as connection:
        connection.execute(statement.encode())


def _until_stage(demonstration: Demonstration, stage: Stage, *, within_s: float = SWITCHED_S_MAX) -> None:
    demonstration.until(lambda: demonstration.stage is stage, f"stage {stage.value}", within_s=within_s)


def _until_delivered(demonstration: Demonstration) -> None:
    """Wait until the outbox contains everything that is committed now."""
    committed = demonstration.lag.flush_lsn()
    demonstration.until(
        lambda: (demonstration.delivered() or Lsn(0)) >= committed,
        "what is committed is in the outbox",
        within_s=CAUGHT_UP_S_MAX,
    )


def _until_lake_keeps_up(demonstration: Demonstration, *, within_s: float = SPARK_BACK_S_MAX) -> None:
    """Wait until everything committed so far is in the lake, and recent changes arrive soon."""
    committed, recent_s = demonstration.lag.flush_lsn(), demonstration.lag.lake.recent_s

    def keeps_up() -> bool:
        return (demonstration.landed() or Lsn(0)) >= committed and bool(recent_s) and recent_s[-1] < KEEPS_UP_S

    demonstration.until(keeps_up, "the lake keeps up", within_s=within_s)
