"""Keys of data files in memory: read once, within a bound in bytes, the last used ones."""

from collections import Counter
from collections.abc import Callable

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tidemark.pipeline.merge.kept_keys import KeptKeys

ROW_BYTES = 8


def keys(rows: int) -> pa.Table:
    return pa.table({"id": pa.array(range(rows), pa.int64())})


class Files:
    """Counts how often each file is read."""

    def __init__(self) -> None:
        self.reads: Counter[str] = Counter()

    def reader(self, name: str, rows: int) -> Callable[[], pa.Table]:
        def read() -> pa.Table:
            self.reads[name] += 1
            return keys(rows)

        return read


def test_a_file_is_read_once_for_the_same_columns() -> None:
    kept, files = KeptKeys(), Files()
    for _ in range(3):
        assert kept.get(("lake", "a", "id int64"), files.reader("a", 5)) == keys(5)
    kept.get(("lake", "a", "id int32"), files.reader("a", 5))
    kept.get(("other", "a", "id int64"), files.reader("a", 5))
    assert files.reads == {"a": 3}


def test_the_file_that_was_not_used_for_longest_is_dropped_first() -> None:
    kept, files = KeptKeys(4 * 100 * ROW_BYTES), Files()
    for name in ("a", "b", "c", "d", "a", "e", "a", "b"):
        kept.get((name,), files.reader(name, 100))
    assert files.reads == {"a": 1, "b": 2, "c": 1, "d": 1, "e": 1}


def test_a_file_above_a_quarter_of_the_bound_displaces_no_other() -> None:
    kept, files = KeptKeys(4 * 100 * ROW_BYTES), Files()
    for name, rows in (("a", 100), ("large", 101), ("large", 101), ("a", 100)):
        kept.get((name,), files.reader(name, rows))
    assert files.reads == {"a": 1, "large": 2}


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 200))))
def test_the_bound_holds_whatever_is_read(sizes: list[tuple[int, int]]) -> None:
    kept, files = KeptKeys(1000 * ROW_BYTES), Files()
    for name, rows in sizes:
        assert kept.get((str(name), str(rows)), files.reader(str(name), rows)).num_rows == rows
        assert 0 <= kept.byte_count <= 1000 * ROW_BYTES
