"""Random sessions: the same lines and the same catalogs, also across stops, and with a seed under load.

`scripts/oracle` runs more of these rounds, for longer.
"""

from pathlib import Path

import pytest

from tests.conftest import NewCluster
from tests.support.oracles.oracle import Oracle, ServerCannotDecode
from tests.support.oracles.oracle_rounds.evidence import read_lines
from tests.support.oracles.oracle_rounds.plan import KINDS, planned
from tests.support.oracles.oracle_rounds.replay import replay
from tests.support.oracles.oracle_rounds.round import RoundOutcome, run_round
from tidemark.decode.transactions import heap_changes

SEED = 1
SECONDS = 5.0
ATTEMPTS = 3  # rounds of a kind until the server itself decodes one


@pytest.mark.feature("P01")
@pytest.mark.feature("P02")
@pytest.mark.feature("P07")
@pytest.mark.parametrize("kind", range(KINDS))
def test_random_sessions_print_the_same_lines(major: int, kind: int, tmp_path: Path) -> None:
    for attempt in range(ATTEMPTS):
        verdict = run_round(planned(SEED, kind + attempt * KINDS, major, SECONDS), tmp_path)
        assert not verdict.is_ours, verdict
        if verdict.outcome is RoundOutcome.IDENTICAL:
            assert verdict.lines > 100
            assert (verdict.replicas > 0) == verdict.plan.has_replica
            return
    pytest.fail(f"the server decoded none of {ATTEMPTS} rounds")


def test_a_missing_row_is_found_and_the_kept_wal_reproduces_it(
    major: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as planted:
        planted.setattr(heap_changes, "SpeculativeKey", lambda *_: object())  # so no key is found again
        verdict = run_round(planned(SEED, 0, major, SECONDS / 2), tmp_path / "kept")
        assert verdict.outcome is RoundOutcome.DIFFERENT
        assert verdict.kept is not None
        assert verdict.plan.command in str(verdict)
        with pytest.raises(AssertionError, match=r"line .* differs"):
            replay(verdict.kept)
    replay(verdict.kept)
    assert read_lines(verdict.kept / "server.lines") != read_lines(verdict.kept / "ours.lines")
    assert ": INSERT INTO " in (verdict.kept / "statements.log").read_text()


def test_a_server_that_cannot_decode_its_own_wal_is_distinguished(new_cluster: NewCluster, major: int) -> None:
    node = new_cluster(major)
    with Oracle(node, "postgres") as oracle:
        node.sql("CREATE TABLE plain (a int)")
        node.sql("INSERT INTO plain SELECT generate_series(1, 5)")
        node.sql(
            "CREATE TYPE mute;"
            "CREATE FUNCTION mute_in(cstring) RETURNS mute LANGUAGE internal IMMUTABLE STRICT AS 'textin';"
            "CREATE FUNCTION mute_out(mute) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'shell_out';"
            "CREATE TYPE mute (INPUT = mute_in, OUTPUT = mute_out, LIKE = text);"
            "CREATE TABLE silent (a mute)"
        )
        node.sql("INSERT INTO silent VALUES ('x')")
        node.sql("INSERT INTO plain VALUES (6)")
        with pytest.raises(ServerCannotDecode, match="shell type") as found:
            oracle.check("mute")
        assert [line for line in found.value.lines if "plain" in line] == [
            f"table public.plain: INSERT: a[integer]:{number}" for number in range(1, 6)
        ]
