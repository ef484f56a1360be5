"""Batches of several versions of a table are put into stream order: no row is lost, doubled or in another version."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.support.forged.groups import DATABASE, batch, relation
from tidemark.decode.groups.stream_order import in_stream_order
from tidemark.model.change import ChangeBatch
from tidemark.model.relation import Relation

VERSIONS = tuple(relation(f"account_{number}") for number in range(3))
StreamPosition = tuple[int, int]


def batch_of(version: Relation, positions: list[StreamPosition]) -> ChangeBatch:
    """Return a row for each commit LSN and ordinal."""
    rows = pa.Table.from_batches([batch(lsn, [ordinal], of=version).rows for lsn, ordinal in positions])
    ordinals = pa.array([ordinal for _, ordinal in positions], pa.int64())
    at = rows.schema.get_field_index("_ordinal")
    (whole,) = rows.set_column(at, rows.schema.field(at), ordinals).combine_chunks().to_batches()
    return ChangeBatch(DATABASE, version, whole)


def rows_of(batches: object) -> list[tuple[int, int, str]]:
    assert isinstance(batches, (list, tuple))
    return [
        (row["_commit_lsn"], row["_after"]["id"], each.relation.name)
        for each in batches
        for row in each.rows.to_pylist()
    ]


@given(
    st.sets(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=12).flatmap(
        lambda positions: st.lists(
            st.tuples(st.integers(0, 2), st.integers(0, 1)), min_size=len(positions), max_size=len(positions)
        ).map(lambda drawn: list(zip(sorted(positions), drawn, strict=True)))
    )
)
def test_rows_are_in_stream_order_each_with_its_own_version(
    drawn: list[tuple[StreamPosition, tuple[int, int]]],
) -> None:
    batches = []
    for version in range(3):
        for part in range(2):  # of one version, one batch follows another
            positions = [position for position, (number, _) in drawn if number == version]
            half = positions[: len(positions) // 2] if part == 0 else positions[len(positions) // 2 :]
            if half:
                batches.append(batch_of(VERSIONS[version], half))
    expected = [(*position, VERSIONS[number].name) for position, (number, _) in drawn]
    ordered = in_stream_order(batches)
    assert rows_of(ordered) == expected
    assert all(each.rows.num_rows for each in ordered)


def test_batches_that_are_in_order_are_not_copied() -> None:
    first, second = batch_of(VERSIONS[0], [(1, 1), (1, 2)]), batch_of(VERSIONS[1], [(1, 3), (2, 1)])
    batches = [first, second]
    assert in_stream_order(batches) is batches
    assert in_stream_order([first])[0] is first
    assert in_stream_order([]) == []


def test_two_interleaved_batches_are_ordered_also_if_a_third_follows_them() -> None:
    first, second = batch_of(VERSIONS[0], [(1, 1), (3, 1)]), batch_of(VERSIONS[1], [(2, 1)])
    third = batch_of(VERSIONS[2], [(4, 1)])
    expected = [(1, 1, "account_0"), (2, 1, "account_1"), (3, 1, "account_0"), (4, 1, "account_2")]
    assert rows_of(in_stream_order([first, second])) == expected[:3]
    assert rows_of(in_stream_order([first, second, third])) == expected
