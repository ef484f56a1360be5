"""The random sessions of the oracle: their statements depend on the seed alone, and cover every kind."""

import re
from dataclasses import replace

import pytest

from tests.support.workloads.random_sessions.draw import Load, Step
from tests.support.workloads.random_sessions.scripts import Script, script_of

LOAD = Load("1 round 0", 18, ("pglz", "lz4"))
SCRIPTS = 6000


def test_a_script_depends_on_seed_session_and_number_alone() -> None:
    forwards = [script_of(LOAD, 2, number) for number in range(100)]
    backwards = [script_of(LOAD, 2, number) for number in reversed(range(100))]
    assert forwards == backwards[::-1]
    assert forwards != [script_of(LOAD, 3, number) for number in range(100)]
    assert forwards != [script_of(replace(LOAD, seed="2 round 0"), 2, number) for number in range(100)]


@pytest.fixture(scope="module")
def statements() -> str:
    return "\n".join(step.sql for number in range(SCRIPTS) for step in _steps(script_of(LOAD, 0, number)))


@pytest.mark.parametrize(
    "pattern",
    [
        r"^PREPARE TRANSACTION",
        r"^ROLLBACK PREPARED",
        r"^VACUUM FULL pg_class",
        r"^VACUUM FULL (account|t\d)",
        r"^CLUSTER pg_attribute",
        r"^CLUSTER (account|t\d)",
        r"^TRUNCATE .* RESTART IDENTITY CASCADE",
        r"^COPY .*\(FREEZE\)",
        r"^COPY .* FROM STDIN$",
        r"ON CONFLICT \(slow\(k\)\)",
        r"^MERGE INTO",
        r"^UPDATE parted SET region",
        r"pg_logical_emit_message\(true",
        r"pg_logical_emit_message\(false",
        r"pg_replication_origin_xact_setup",
        r"REPLICA IDENTITY FULL",
        r"REPLICA IDENTITY NOTHING",
        r"REPLICA IDENTITY DEFAULT",
        r"REPLICA IDENTITY USING INDEX",
        r"SET COMPRESSION lz4",
        r"SET STORAGE EXTERNAL",
        r"^CHECKPOINT",
        r"^SAVEPOINT s70$",
        r"^ROLLBACK TO s",
    ],
)
def test_every_kind_of_statement_is_drawn(statements: str, pattern: str) -> None:
    assert re.search(pattern, statements, re.MULTILINE)


def test_remaining_prepared_transactions_are_ended_later() -> None:
    prepared, ended = set[str](), set[str]()
    for number in range(SCRIPTS):
        for step in _steps(script_of(LOAD, 0, number)):
            if found := re.match(r"(PREPARE TRANSACTION|(?:COMMIT|ROLLBACK) PREPARED) '(\w+)'", step.sql):
                (prepared if found[1].startswith("PREPARE") else ended).add(found[2])
    assert prepared
    assert len(prepared - ended) <= 2, "those of the last scripts"


def _steps(script: Script) -> tuple[Step, ...]:
    return (*script.steps, *script.finish)
