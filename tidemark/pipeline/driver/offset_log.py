"""The end of a batch, from the log of offsets in the checkpoint of the query.

Spark writes the file `offsets/N` before it runs batch N. To ask the batch itself needs a Spark job: some 100 ms, and a
Python worker. The file has a line with the version, one with the settings of the batch, and one for each source
(org.apache.spark.sql.execution.streaming.OffsetSeqLog, Spark 4.2).
"""

import json

from pyspark.sql import SparkSession

from tidemark.model.errors import StateError
from tidemark.pipeline.source.offsets import Offset

_VERSION = "v1"


class UnreadableOffsets(StateError):
    """A file of the checkpoint that is not what Spark 4.2 writes for a query with one source."""

    hint = "delete Spark's checkpoint, which costs only time: the lake stores its positions"


class OffsetLog:
    """Reads the log of one query, through the file system that Spark writes it with."""

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        """`checkpoint` is the location that the query has."""
        jvm = spark.sparkContext._jvm  # noqa: SLF001 - PySpark has no public name
        assert jvm is not None
        # NB: each part of a name is a question to the JVM.
        self._path_of, self._text_of = jvm.org.apache.hadoop.fs.Path, jvm.org.apache.commons.io.IOUtils.toString
        self._folder = f"{checkpoint}/offsets"
        self._files = self._path_of(self._folder).getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())  # noqa: SLF001

    def end(self, batch_id: int) -> Offset:
        """Return where a batch ends, which Spark runs now; raise `UnreadableOffsets`."""
        path = f"{self._folder}/{batch_id}"
        stream = self._files.open(self._path_of(path))
        try:
            text = self._text_of(stream, "UTF-8")
        finally:
            stream.close()
        return parse_offsets(text, path)


def parse_offsets(text: str, where: str) -> Offset:
    """Return the offset of the only source in a file of the log; raise `UnreadableOffsets`."""
    version, *lines = text.splitlines() or [""]
    if version.strip() != _VERSION or len(lines) != 2:
        raise UnreadableOffsets(f"{where} has {len(lines)} lines after {version[:20]!r}, not two after {_VERSION!r}")
    try:
        found = json.loads(lines[1])
        return {"outbox": str(found["outbox"]), "sequence": int(found["sequence"])}
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableOffsets(f"{where} has no offset of an outbox: {lines[1][:200]!r}") from error
