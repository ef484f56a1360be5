"""The oracle of the kill campaign: it reads test_decoding's lines, and it fails where it must."""

import pytest

from tests.support.oracles.log_oracle import ChangeIdentity, Transactions, assert_equal, parse_change

INSERT = ChangeIdentity("t", "i", None, 1)
DELETE = ChangeIdentity("t", "d", 1, None)
MISLEADING = (
    "table public.t: UPDATE: old-key: id[integer]:1 n[text]:' new-tuple: id[integer]:7' new-tuple: id[integer]:2"
)


@pytest.mark.parametrize(
    ("line", "change"),
    [
        ("table public.t: INSERT: id[integer]:1 note[text]:'it''s [a]:\nb' n[numeric]:0.5", ("t", "i", None, 1)),
        ("table public.t: UPDATE: id[integer]:-1 body[text]:unchanged-toast-datum", ("t", "u", None, -1)),
        ("table public.t: UPDATE: old-key: id[integer]:1 new-tuple: id[integer]:2 n[text]:null", ("t", "u", 1, 2)),
        (MISLEADING, ("t", "u", 1, 2)),
        ("table public.t: INSERT: id[integer]:4 a[text[]]:'{a,NULL}' f[double precision]:0.25", ("t", "i", None, 4)),
        ("table public.t: DELETE: id[integer]:3", ("t", "d", 3, None)),
        ("table public.t: TRUNCATE: (no-flags)", ("t", "t", None, None)),
    ],
)
def test_a_line_of_test_decoding_is_parsed(line: str, change: tuple[str, str, int | None, int | None]) -> None:
    assert parse_change(line) == ChangeIdentity(*change)


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        ({1: [INSERT], 2: [DELETE]}, None),
        ({1: [INSERT]}, "lost 1, doubled 0"),
        ({1: [], 2: [DELETE, INSERT]}, "lost 1, doubled 1"),
        ({1: [INSERT], 2: [DELETE, DELETE]}, "lost 0, doubled 1"),
        ({1: [INSERT], 2: [DELETE], 3: [INSERT]}, "lost 0, doubled 1"),
        ({2: [DELETE], 1: [INSERT]}, "commit order"),
    ],
)
def test_the_log_must_contain_each_change_of_a_transaction_once(found: Transactions, complaint: str | None) -> None:
    expected = {1: [INSERT], 2: [DELETE]}
    if complaint is None:
        assert_equal(expected, found)
    else:
        with pytest.raises(AssertionError, match=complaint):
            assert_equal(expected, found)


def test_the_changes_of_a_transaction_must_be_in_order() -> None:
    with pytest.raises(AssertionError, match="transaction 1 stand in another order"):
        assert_equal({1: [INSERT, DELETE]}, {1: [DELETE, INSERT]})
