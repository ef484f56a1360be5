"""The statements of a session's nth transaction, all drawn beforehand, so that a failure does not change later ones."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.support.workloads.random_sessions.definitions import CATALOGS, catalog_rewrite, chore, definition
from tests.support.workloads.random_sessions.draw import Draw, Load, Step, quoted
from tests.support.workloads.random_sessions.objects import ORIGINS
from tests.support.workloads.random_sessions.row_changes import row_change

BEGIN, COMMIT, ROLLBACK = Step("BEGIN"), Step("COMMIT"), Step("ROLLBACK")
GUARDED_SHARE = 0.6  # of blocks
ROLLBACK_SHARE = 0.12
LINGER_SHARE = 0.3  # share of prepared transactions that their session ends later, unless a crash comes in between
LINGERS_FOR = 3  # transactions of its session
MANY_SUBTRANSACTIONS = 64  # PGPROC_MAX_CACHED_SUBXIDS, the number of subxids in one ASSIGNMENT record


@dataclass(frozen=True, slots=True)
class Script:
    """The statements of a transaction, or of a script without a transaction block.

    `guarded`: each step has its own savepoint, and an error rolls back only the step. `finish` always runs at the end.
    """

    steps: tuple[Step, ...]
    guarded: bool = False
    finish: tuple[Step, ...] = ()


def script_of(load: Load, session: int, number: int) -> Script:
    """Return the script of session `session` for its transaction `number`."""
    draw = Draw(load, session, number)
    script = draw.weighted(_shapes(load))(draw)
    lingering = _lingering(load, session, number - LINGERS_FOR)
    return Script((*lingering, *script.steps), script.guarded, script.finish)


def _one(draw: Draw) -> Script:
    return Script((_statement(draw),))


def _catalog(draw: Draw) -> Script:
    return Script((Step(f"VACUUM FULL {draw.pick(CATALOGS)}"),))


def _chore(draw: Draw) -> Script:
    return Script((chore(draw),))


def _block(draw: Draw) -> Script:
    """Return an ordinary transaction, with savepoints."""
    end = ROLLBACK if draw.chance(ROLLBACK_SHARE) else COMMIT
    body = _body(draw)
    if draw.chance(draw.load.rewrites):
        body = (*body, catalog_rewrite(draw), *_body(draw))
    return Script((_begin(draw), *body, end), guarded=draw.chance(GUARDED_SHARE))


def _begin(draw: Draw) -> Step:
    return draw.pick((BEGIN, BEGIN, BEGIN, Step("BEGIN ISOLATION LEVEL SERIALIZABLE")))


def _statement(draw: Draw) -> Step:
    return definition(draw) if draw.chance(draw.load.definitions) else row_change(draw)


def _body(draw: Draw) -> tuple[Step, ...]:
    steps: list[Step] = []
    savepoints = 0
    for _ in range(1 + draw.number(8)):
        if draw.chance(0.15):
            steps.append(Step(f"SAVEPOINT s{savepoints}"))
            savepoints += 1
        elif savepoints and draw.chance(0.15):
            savepoints -= 1
            steps.append(Step(f"{draw.pick(('RELEASE', 'ROLLBACK TO'))} s{savepoints}"))
        else:
            steps.append(_statement(draw))
    return tuple(steps)


def _deep(draw: Draw) -> Script:
    """Nest savepoints, roll back to one in between, and continue from there."""
    depth = draw.pick((10, 30, MANY_SUBTRANSACTIONS + 10))
    steps: list[Step] = []
    for level in range(depth):
        steps.append(Step(f"SAVEPOINT s{level}"))
        if draw.chance(0.7):
            (new,) = draw.new_ids(1)
            steps.append(Step(f"INSERT INTO account (id, note) VALUES ({new}, 'level {level}')"))
        elif draw.chance(0.1):
            steps.append(Step(f"CREATE TABLE deep_{draw.name}_{level} AS SELECT {level} AS level"))
    for _ in range(draw.number(4)):
        depth = draw.number(depth) + 1
        steps.append(Step(f"{draw.pick(('RELEASE', 'ROLLBACK TO'))} s{depth - 1}"))
        steps.append(row_change(draw))
        if depth == 1:
            break
    return Script((BEGIN, *steps, ROLLBACK if draw.chance(ROLLBACK_SHARE) else COMMIT))


def _many(draw: Draw) -> Script:
    """Use more subtransactions than the server caches, some of which fail, some with DDL."""
    count, every = MANY_SUBTRANSACTIONS + draw.number(150), 2 + draw.number(5)
    ids = draw.new_ids(count)
    table = draw.pick(("account", draw.table()))
    inner = draw.pick(
        (
            f"UPDATE account SET n = n + 1 WHERE id = {draw.number(9)};",
            f"IF i % 20 = 0 THEN EXECUTE format('CREATE TABLE many_{draw.name}_%s AS SELECT %s AS i', i, i); END IF;",
            f"IF i % 30 = 0 THEN EXECUTE format('ALTER TABLE {table} ADD COLUMN x_%s int DEFAULT 7', i % 5); END IF;",
            "",
        )
    )
    body = (
        f"BEGIN FOR i IN {ids[0]}..{ids[-1]} LOOP BEGIN INSERT INTO {table} (id, note) VALUES (i, 'many'); {inner}"
        f" IF i % {every} = 0 THEN RAISE EXCEPTION 'no'; END IF;"
        " EXCEPTION WHEN raise_exception OR duplicate_column THEN NULL; END; END LOOP; END"
    )
    steps = (BEGIN, *_body(draw), Step(f"DO {quoted(body)}"), *_body(draw), COMMIT)
    return Script(steps, guarded=draw.chance(GUARDED_SHARE))


def _large(draw: Draw) -> Script:
    """Write more than a small memory limit allows."""
    ids = draw.new_ids(4000)
    insert = (
        f"INSERT INTO account (id, note) SELECT i, repeat('large', i % 90) FROM generate_series({ids[0]}, {ids[-1]}) i"
    )
    undo = Step(f"DELETE FROM account WHERE id BETWEEN {ids[0]} AND {ids[-1]}")
    middle = (Step("SAVEPOINT a"), undo, Step(draw.pick(("ROLLBACK TO a", "RELEASE a"))))
    return Script((BEGIN, Step(insert), *middle, *_body(draw), undo, COMMIT), guarded=True)


def _frozen(draw: Draw) -> Script:
    """Copy rows with FREEZE, into a table of the same transaction."""
    ids = draw.new_ids(200)
    name = f"frozen_{draw.name}"
    make = (Step(f"CREATE TABLE {name} (id bigint PRIMARY KEY, note text)"),)
    if draw.chance(0.5):
        name, make = "owner", (Step("TRUNCATE owner CASCADE"),)
    rows = Step(f"COPY {name} (id, note) FROM STDIN (FREEZE)", tuple(f"{i}\tfrozen" for i in ids))
    return Script((BEGIN, *make, rows, *_body(draw), ROLLBACK if draw.chance(ROLLBACK_SHARE) else COMMIT))


def _prepared(draw: Draw) -> Script:
    """Prepare a transaction, and end it after other statements, or some transactions later."""
    steps = (BEGIN, *_body(draw), Step(f"PREPARE TRANSACTION '{draw.name}'"))
    guarded = draw.chance(GUARDED_SHARE)
    if draw.chance(LINGER_SHARE):
        return Script(steps, guarded)
    between = (row_change(draw),) if draw.chance(0.3) else ()
    return Script((*steps, *between), guarded, finish=(_end_of_prepared(draw),))


def _end_of_prepared(draw: Draw) -> Step:
    return Step(f"{draw.pick(('COMMIT', 'COMMIT', 'ROLLBACK'))} PREPARED '{draw.name}'")


def _lingering(load: Load, session: int, number: int) -> tuple[Step, ...]:
    """Return the statement that ends a transaction which an earlier script prepared."""
    draw = Draw(load, session, number)
    if number < 0 or draw.weighted(_shapes(load)) is not _prepared or _prepared(draw).finish:
        return ()
    return (_end_of_prepared(draw),)


def _replayed(draw: Draw) -> Script:
    """Change rows with a replication origin, as a subscriber does."""
    setup = Step(f"SELECT pg_replication_origin_session_setup('{draw.pick(ORIGINS)}')")
    reported = Step(f"SELECT pg_replication_origin_xact_setup('0/{draw.number(1 << 24):X}', now())")
    steps = (
        setup,
        BEGIN,
        reported,
        *_body(draw),
        ROLLBACK if draw.chance(ROLLBACK_SHARE) else COMMIT,
        _one(draw).steps[0],
    )
    return Script(steps, finish=(Step("SELECT pg_replication_origin_session_reset()"),))


SHAPES: Mapping[Callable[[Draw], Script], float] = {
    _one: 30,
    _block: 40,
    _prepared: 9,
    _deep: 3,
    _many: 3,
    _large: 1,
    _frozen: 3,
    _replayed: 4,
    _chore: 4,
}


def _shapes(load: Load) -> Mapping[Callable[[Draw], Script], float]:
    return {**SHAPES, _catalog: load.rewrites * sum(SHAPES.values())}
