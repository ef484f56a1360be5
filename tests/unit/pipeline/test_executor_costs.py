"""What the driver measures to compare its own writes with those of executors."""

import pytest

from tidemark.io.host.log_output import get_log
from tidemark.io.process.lake_config import DEFAULT_LAKE
from tidemark.model.lsn import Oid
from tidemark.pipeline.driver.executor_writers import ExecutorWriters
from tidemark.pipeline.landing.metrics import PipelineMetrics
from tidemark.pipeline.sinks.executors.write_costs import MERGES, MIB, RunWriter
from tidemark.pipeline.source.options import SourceOptions

ORDERS = (Oid(1), Oid(10))
SIZES = [size * MIB for size in (2, 4, 8, 16, 48)]
RUNS = 12  # of each size
READ_S = 0.05  # of a MiB


@pytest.fixture
def writers() -> ExecutorWriters:
    source = SourceOptions.parse({"state": "/nonexistent"})
    return ExecutorWriters(source, "/nonexistent", DEFAULT_LAKE, get_log("test"), PipelineMetrics("test"))


def of_write(writer: RunWriter, size: int) -> float:
    """Return the seconds of a write; executors read the run in this time."""
    mib = size / MIB
    return 0.05 + 0.06 * mib if writer is RunWriter.DRIVER else 0.1 + (READ_S + 0.05) * mib


def test_a_write_of_the_driver_takes_as_long_as_reading_and_writing(writers: ExecutorWriters) -> None:
    """Executors pay from 5 MiB on, and for all merges; if reading counted for them alone, they would never pay."""
    record_read = writers.taken().record_read
    assert record_read is not None
    for size in SIZES * RUNS:
        record_read(size, READ_S * size / MIB)
        for writer in RunWriter:
            writers.record(writer, size, of_write(writer, size))
            writers.record_merge(writer, ORDERS, size, size, of_write(writer, size))
    assert writers.bytes_min == pytest.approx(5 * MIB, rel=0.15)
    assert writers.merges(ORDERS, MERGES.least, 0)
    assert not writers.merges(ORDERS, MERGES.least - 1, 0)
