"""The privileges that the first copy will lack, and the statements that grant them; `cdcctl init` prints both."""

from collections.abc import Iterator
from contextlib import closing

from tidemark.io.node.database_names import database_names
from tidemark.io.node.node import Node
from tidemark.io.node.source_tables import LackingTable, lacking_tables, role_name
from tidemark.io.process.config import Config
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.lsn import Oid
from tidemark.model.mode import Stage
from tidemark.runtime.seed.copy_plan import is_captured
from tidemark.runtime.seed.copy_sessions import CopySessions

TABLES_NAMED_MAX = 20  # named in one database; for a schema with more, GRANT names the schema


def lacking_rights(config: Config, folder: StateFolder) -> Iterator[str]:
    """Yield the missing privileges on the captured tables, and the GRANTs, or that no table is captured.

    Nothing is yielded if nothing will be copied.
    """
    with StateStore.open(folder, read_only=True) as store:
        view = store.view()
    if not config.copy.enabled or view.stage is Stage.FOLLOWER or view.beginning is None:
        return
    count = 0
    with closing(CopySessions(config.capture.dsn, view.identity)) as sessions:
        for database, name in database_names(sessions.node(), view.beginning.databases).items():
            if not config.select.selection().selects_database(name):
                continue
            with Node(config.capture.dsn, database=name) as node:
                lacking = {table.oid: table for table in lacking_tables(node)}
                role = role_name(node)
            captured = _captured(config, sessions, database, name)
            count += len(captured)
            yield from _lines(name, role, [table for oid, table in lacking.items() if oid in captured])
    if not count:
        patterns = ", ".join(config.select.tables)
        yield (
            f"no table matches {patterns} (--table, select.tables) at present: a table that matches is captured from "
            "its creation on"
        )


def _captured(config: Config, sessions: CopySessions, database: Oid, name: str) -> set[Oid]:
    selection = config.select.selection()
    return {table.oid for table in sessions.source(database, name).tables() if is_captured(selection, table)}


def _lines(database: str, role: str, lacking: list[LackingTable]) -> Iterator[str]:
    if not lacking:
        return
    names = ", ".join(table.table for table in lacking[:TABLES_NAMED_MAX])
    more = f" and {len(lacking) - TABLES_NAMED_MAX} more" if len(lacking) > TABLES_NAMED_MAX else ""
    yield f"database {database}: {role} cannot read {len(lacking)} captured tables in full: {names}{more}"
    yield (
        "the first copy needs this: the sidecar ends with exit code 8 until these statements have run in that database:"
    )
    for schema in sorted({table.schema for table in lacking if not table.is_usable}):
        yield f"  GRANT USAGE ON SCHEMA {schema} TO {role};"
    unread = [table for table in lacking if not table.is_readable]
    for schema in sorted({table.schema for table in unread}):
        tables = [table.table for table in unread if table.schema == schema]
        of = f"ALL TABLES IN SCHEMA {schema}" if len(tables) > TABLES_NAMED_MAX else ", ".join(tables)
        yield f"  GRANT SELECT ON {of} TO {role};"
    if any(table.hides_rows for table in lacking):
        yield f"  ALTER ROLE {role} BYPASSRLS;"
