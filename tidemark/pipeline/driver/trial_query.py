"""A query that loads the classes of the pipeline's own: over a Python source, with a local checkpoint, without rows."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from tidemark.pipeline.driver.checkpoint_files import checkpoint_url
from tidemark.pipeline.driver.offset_log import OffsetLog
from tidemark.pipeline.source.offsets import Offset

BEGIN: Offset = {"outbox": "", "sequence": 0}
END: Offset = {"outbox": "", "sequence": 1}
BYTES_MAX = 1  # the source has no bytes


class TrialSource(DataSource):
    """A source of one empty batch."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "tidemark.trial"

    def schema(self) -> str:
        """Return the columns."""
        return "sequence bigint"

    def streamReader(self, schema: object) -> "TrialReader":  # noqa: ARG002, N802 - Spark's names, by keyword
        """Return the reader."""
        return TrialReader()


class TrialReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans one empty batch."""

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return the beginning."""
        return BEGIN

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the bound of a batch."""
        return ReadMaxBytes(BYTES_MAX)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Do nothing: the end is fixed."""

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: ARG002, N802
        """Return the end."""
        return END

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """Return the end."""
        return END

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:  # noqa: ARG002
        """Return none."""
        return []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Yield nothing."""
        return iter(())

    def commit(self, end: Offset) -> None:
        """Do nothing."""


def run_trial(spark: SparkSession, folder: Path) -> None:
    """Run the query until its end."""
    spark.dataSource.register(TrialSource)
    checkpoint = checkpoint_url(spark, str(folder / "checkpoint"))
    offsets = OffsetLog(spark, checkpoint)
    rows = spark.readStream.format(TrialSource.name()).load()
    writer = rows.writeStream.option("checkpointLocation", checkpoint)

    def batch(_rows: DataFrame, batch_id: int) -> None:
        offsets.end(batch_id)

    writer.foreachBatch(batch).trigger(availableNow=True).start().awaitTermination()
