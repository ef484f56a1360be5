"""Row changes: inserts of every kind, updates with and without a move, deletes, truncations, COPY, messages."""

from collections.abc import Callable, Mapping

from tests.support.workloads.random_sessions.draw import Draw, Step, copied

MERGE_SINCE = 15
HOT_IDS = 40  # keys of `account`, `claim` and `parted` that all sessions change
MANY_ROWS = 300
REGIONS = 5


def insert(draw: Draw) -> Step:
    """Insert rows with new keys into a volatile table."""
    ids, column = draw.new_ids(draw.pick((1, 1, 1, 5, 80))), draw.column()
    conflict = draw.pick(("", "", f" ON CONFLICT (id) DO UPDATE SET {column} = {draw.value(column)}"))
    rows = f"SELECT i, {draw.text()}, {draw.value(column)} FROM generate_series({ids[0]}, {ids[-1]}) i"
    return Step(f"INSERT INTO {draw.table()} (id, note, {column}) {rows}{conflict}")


def update(draw: Draw) -> Step:
    """Update some rows of a volatile table, sometimes their keys."""
    column = draw.column()
    change = draw.pick((f"{column} = {draw.value(column)}", f"note = {draw.text()}", "id = -id", "note = note"))
    return Step(f"UPDATE {draw.table()} SET {change} WHERE id % 7 = {draw.number(7)}")


def delete(draw: Draw) -> Step:
    """Delete some rows of a volatile table."""
    return Step(f"DELETE FROM {draw.table()} WHERE id % 11 = {draw.number(11)}")


def hot_insert(draw: Draw) -> Step:
    """Insert keys that other sessions insert as well, in one of several ways."""
    keys = f"generate_series({draw.number(HOT_IDS)}, {draw.number(HOT_IDS)})"
    action = draw.pick(("NOTHING", "UPDATE SET n = account.n + 1, note = excluded.note"))
    return Step(f"INSERT INTO account (id, note) SELECT i, {draw.text()} FROM {keys} i ON CONFLICT (id) DO {action}")


def claim(draw: Draw) -> Step:
    """Insert speculatively at the same moment as other sessions: all but one remove their rows and chunks again."""
    action = draw.pick(("NOTHING", "UPDATE SET note = excluded.note", "UPDATE SET id = claim.id + 1"))
    rows = f"SELECT i, 'k' || i, {draw.text()} FROM generate_series(1, {1 + draw.number(3)}) i, together"
    return Step(f"INSERT INTO claim (id, k, note) {rows} ON CONFLICT (slow(k)) DO {action}")


def delete_claims(_: Draw) -> Step:
    """Delete rows to make claims possible again."""
    return Step("DELETE FROM claim")


def hot_update(draw: Draw) -> Step:
    """Update rows that other sessions update as well; rows that grow move to another page."""
    change = draw.pick(("n = n + 1", f"filler = {draw.text()}", f"note = {draw.text()}", "id = id + 1", "n = n"))
    return Step(f"UPDATE account SET {change} WHERE id % {1 + draw.number(9)} = 0")


def hot_delete(draw: Draw) -> Step:
    """Delete rows that other sessions update."""
    return Step(f"DELETE FROM account WHERE id BETWEEN {draw.number(HOT_IDS)} AND {draw.number(HOT_IDS)}")


def merge(draw: Draw) -> Step:
    """Insert, update and delete in one statement, where the major supports it."""
    if draw.load.major < MERGE_SINCE:
        return hot_insert(draw)
    target = draw.pick(("account", "owner"))
    change = {"account": "n = a.n + 1", "owner": "note = a.note || '!'"}[target]
    first = draw.number(HOT_IDS)
    return Step(
        f"MERGE INTO {target} a USING generate_series({first}, {first + 5}) s ON a.id = s"
        f" WHEN MATCHED AND s % 3 = {draw.number(3)} THEN DELETE WHEN MATCHED THEN UPDATE SET {change}"
        f" WHEN NOT MATCHED THEN INSERT (id, note) VALUES (s, {draw.text()})"
    )


def parted_insert(draw: Draw) -> Step:
    """Insert into partitions through the root."""
    ids = draw.new_ids(draw.pick((1, 10)))
    rows = f"SELECT i, i % {REGIONS}, {draw.text()} FROM generate_series({ids[0]}, {ids[-1]}) i"
    return Step(f"INSERT INTO parted (id, region, note) {rows}")


def parted_move(draw: Draw) -> Step:
    """Update rows so that they move to another partition."""
    change = draw.pick((f"region = {draw.number(REGIONS)}", "id = -id", f"filler = {draw.text()}"))
    return Step(f"UPDATE parted SET {change} WHERE id % 9 = {draw.number(9)}")


def own(draw: Draw) -> Step:
    """Insert rows, and change others by foreign keys."""
    return Step(
        draw.pick(
            (
                "INSERT INTO owner (note) SELECT 'owner' FROM generate_series(1, 3)",
                f"INSERT INTO pet (owner_id, note) SELECT id, {draw.text()} FROM owner LIMIT 5",
                f"DELETE FROM owner WHERE id % 13 = {draw.number(13)}",
                f"UPDATE owner SET id = -id WHERE id % 17 = {draw.number(17)}",
            )
        )
    )


def truncate(draw: Draw) -> Step:
    """Truncate, with CASCADE and RESTART IDENTITY."""
    tables = draw.pick(("owner", "pet", "owner, pet", "parted", "parted_1", "claim", "letter", draw.table()))
    return Step(f"TRUNCATE {tables}{draw.pick(('', ' RESTART IDENTITY'))}{draw.pick(('', ' CASCADE'))}")


def write_letter(draw: Draw) -> Step:
    """Insert a row with values out of line."""
    (new,) = draw.new_ids(1)
    texts = ", ".join(draw.text() for _ in range(3))
    body = f"decode(noise({draw.number(200) * 64}, {new % 1000}), 'hex')"
    doc = f"jsonb_build_object('k', noise({draw.number(9000)}, 1), 'n', {new})"
    return Step(f"INSERT INTO letter VALUES ({new}, {draw.number(100)}, {texts}, {body}, {doc})")


def change_letter(draw: Draw) -> Step:
    """Change one of many values: unchanged ones remain out of line."""
    column = draw.pick(("main", "outside", "packed"))
    changes = ("n = n + 1", f"{column} = {draw.text()}", f"{column} = {column} || 'tail'", "body = NULL", "id = -id")
    return Step(f"UPDATE letter SET {draw.pick(changes)} WHERE id % 5 = {draw.number(5)}")


def delete_letter(draw: Draw) -> Step:
    """Delete rows with values out of line."""
    return Step(f"DELETE FROM letter WHERE id % 7 = {draw.number(7)}")


def copy(draw: Draw) -> Step:
    """Copy rows in: multi-inserts."""
    ids, column = draw.new_ids(draw.pick((1, 20, MANY_ROWS))), draw.column()
    rows = tuple(f"{i}\trow {i}\t{copied(draw.plain_value(column))}" for i in ids)
    table = draw.table()
    return draw.pick(
        (
            Step(f"COPY {table} (id, note, {column}) FROM STDIN", rows),
            Step("COPY letter (id, outside) FROM STDIN", tuple(f"{i}\t{'copied ' * (i % 700)}" for i in ids)),
            Step("COPY parted (id, region, note) FROM STDIN", tuple(f"{i}\t{i % REGIONS}\tcopied" for i in ids)),
        )
    )


def message(draw: Draw) -> Step:
    """Write a logical message, transactional or not."""
    if not draw.load.messages:
        return hot_update(draw)
    transactional = draw.pick(("true", "false"))
    content = draw.pick(("'message'", "repeat('long ', 3000)", "''"))
    return Step(f"SELECT pg_logical_emit_message({transactional}, 'random {draw.name}', {content})")


def lock(draw: Draw) -> Step:
    """Lock rows or a table; rows locked by several sessions have a multixact."""
    strength = draw.pick(("UPDATE", "NO KEY UPDATE", "SHARE", "KEY SHARE"))
    return Step(
        draw.pick(
            (
                f"SELECT 1 FROM account WHERE id % 3 = {draw.number(3)} FOR {strength}",
                f"SELECT 1 FROM owner FOR {strength}",
                f"SELECT 1 FROM pg_class WHERE relname = '{draw.table()}' FOR {strength}",
                f"LOCK TABLE {draw.table()} IN {draw.pick(('SHARE', 'ROW EXCLUSIVE', 'EXCLUSIVE'))} MODE",
            )
        )
    )


ROW_CHANGES: Mapping[Callable[[Draw], Step], float] = {
    insert: 8,
    update: 4,
    delete: 2,
    hot_insert: 4,
    claim: 2,
    delete_claims: 2,
    hot_update: 4,
    hot_delete: 1,
    merge: 2,
    parted_insert: 3,
    parted_move: 3,
    own: 3,
    truncate: 0.7,
    write_letter: 4,
    change_letter: 3,
    delete_letter: 0.7,
    copy: 2,
    message: 1.5,
    lock: 1.5,
}


def row_change(draw: Draw) -> Step:
    """Return one of these changes."""
    return draw.weighted(ROW_CHANGES)(draw)
