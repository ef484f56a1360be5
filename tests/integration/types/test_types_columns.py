"""Columns compared with values: from the same heap pages, for every type, compiled or not."""

import psycopg
import pyarrow as pa
import pytest
from psycopg.rows import TupleRow

from tests.support.forged.spans import inserts
from tests.support.samples.type_samples import SAMPLES
from tests.support.servers.heap_pages import describe_relation, load_values, output_texts, packed_tuples
from tests.support.servers.postgres import Cluster
from tidemark.decode.arrow.batches import BatchBuilder
from tidemark.decode.datum.tuples import TupleLayout, deform
from tidemark.decode.types.registry import column_codec
from tidemark.model.lsn import Oid


@pytest.mark.parametrize("declaration", SAMPLES)
def test_column_equals_the_values_and_the_parsed_text(
    cluster: Cluster, session: psycopg.Connection[TupleRow], declaration: str
) -> None:
    values: list[str | None] = [None, *SAMPLES[declaration], None]
    load_values(session, "one_type", declaration, values * 3)
    relation = describe_relation(session, "one_type")
    packed = packed_tuples(cluster.data, session, "one_type")
    layout = TupleLayout.of(relation)
    codec = column_codec(relation.columns[1])

    (batch,) = BatchBuilder(Oid(1), relation).build(inserts(packed))
    batch.rows.validate(full=True)
    after = batch.rows.column("_after").flatten()

    datums = [deform(one, layout)[1] for one in packed]
    expected = pa.array([codec.arrow_value(d) if isinstance(d, bytes) else None for d in datums], codec.arrow_type)
    assert repr(after[1].to_pylist()) == repr(expected.to_pylist())
    order = after[0].to_pylist()
    texts = [output_texts(session, "one_type")[number - 1] for number in order]
    parsed = pa.array([None if text is None else codec.parse_text(text) for text in texts], codec.arrow_type)
    assert repr(after[1].to_pylist()) == repr(parsed.to_pylist())
