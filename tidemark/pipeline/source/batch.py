"""A batch query over the present contents of the outbox; it registers no reader."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from tidemark.io.host.loaded_objects import skipping_loaded_objects
from tidemark.model.position import Sequence
from tidemark.pipeline.source.contents import Contents
from tidemark.pipeline.source.offsets import OutboxReplaced
from tidemark.pipeline.source.opened_outbox import open_outbox
from tidemark.pipeline.source.options import SourceOptions
from tidemark.pipeline.source.outbox_port import OutboxPort
from tidemark.pipeline.source.outbox_range import OutboxRange, divide
from tidemark.pipeline.source.remedies import stating_remedies
from tidemark.pipeline.source.rows.query_table import ChangesMissing


class OutboxBatchReader(DataSourceReader):
    """Reads all that the outbox contains when the query is planned, from its starting position on."""

    def __init__(self, options: SourceOptions, contents: Contents) -> None:
        self._options = options
        self._contents = contents

    @stating_remedies()
    def partitions(self) -> list[InputPartition]:
        """Divide the contents into partitions: an empty one if there is none; raise `ChangesMissing`."""
        outbox = self._outbox()
        after, upto = self._options.start.find(outbox), outbox.head()
        headers = outbox.headers(after, upto)
        for header in headers:
            if (gap := self._contents.gap(outbox, header)) is not None:
                raise ChangesMissing(gap)
        found = divide(outbox.outbox_id, after, upto, headers, lambda header: self._contents.wants(outbox, header))
        return found or [OutboxRange(outbox.outbox_id, upto, upto)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the contents of a partition; raise `OutboxTrimmed` if they were trimmed since."""
        assert isinstance(partition, OutboxRange), partition
        with skipping_loaded_objects(), stating_remedies():
            outbox = open_outbox(self._options, is_started=True)
            if partition.outbox != outbox.outbox_id:
                raise OutboxReplaced(
                    f"the query belongs to outbox {partition.outbox}, but {outbox.place} has {outbox.outbox_id}"
                )
            yield from self._contents.read(outbox, Sequence(partition.after), Sequence(partition.upto))

    def _outbox(self) -> OutboxPort:
        return open_outbox(self._options)
