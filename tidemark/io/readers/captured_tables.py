"""The tables that a state captures, as its catalog history describes them at its end."""

from collections.abc import Iterator

from tidemark.decode.catalog.databases import by_name
from tidemark.engine.selection import Selection
from tidemark.io.state.history_files import load_catalogs
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.lsn import Oid
from tidemark.model.relation import PARTITIONED, Relation


def captured_tables(folder: StateFolder, selection: Selection) -> dict[tuple[Oid, Oid], Relation]:
    """Return the tables whose changes are delivered under their own name, by database and OID.

    There are none before `cdcctl init` has ended. Raises `StateError` or `DamagedHistory` if the history cannot be
    read, also because a daemon trims it meanwhile.
    """
    with StateStore.open(folder) as store:
        view = store.view()
    if view.beginning is None or not view.history.bases:
        return {}
    lsn = max(view.journal.end_lsn, *(base.lsn for base in view.history.bases))
    captured = by_name(selection.selects_database)
    base = load_catalogs(folder.history, view.history, view.journal, lsn, captured, seeded_lsn=view.beginning.lsn)
    return {
        (database, relation.oid): relation
        for database in base.mirrors
        if base.mirrors.captured(database) is not None
        for relation in _delivered(base.mirrors[database].relations(), selection)
    }


def _delivered(relations: Iterator[Relation], selection: Selection) -> Iterator[Relation]:
    for relation in relations:
        is_root = relation.kind == PARTITIONED
        if is_root and not selection.is_root(relation.namespace, relation.name):
            continue  # its rows come from its partitions
        if selection.root_of(relation.ancestors) is None and selection.selects(relation):
            yield relation
