"""The tables of a lake for people, from a report of `tidemark.pipeline.landing.lake_reports`."""

from collections.abc import Mapping, Sequence

from tidemark_ctl.views.render import Tree

# Of `tidemark.pipeline.lake.positions.table_position.TableState`, which `cdcctl` does not load:
BLOCKED, DROPPED = "blocked", "dropped"


def without_dropped(report: Mapping[str, Tree]) -> dict[str, Tree]:
    """Return a report without dropped tables."""
    return {**report, "tables": [table for table in _mappings(report["tables"]) if table["state"] != DROPPED]}


def list_tree(report: Mapping[str, Tree]) -> dict[str, Tree]:
    """Return the tables as one line each."""
    return {**report, "tables": [_line(table) for table in _mappings(report["tables"])]}


def description_tree(report: Mapping[str, Tree]) -> dict[str, Tree]:
    """Return one table; its columns are one line each."""
    found = {name: _delta_tree(delta) for name, delta in _mapping(report["delta_tables"]).items()}
    return {**report, "state": _state_text(report), "delta_tables": found}


def check_tree(report: Mapping[str, Tree]) -> dict[str, Tree]:
    """Return the faults as one line each."""
    faults = [f"{one['path']}: {fault}" for one in _mappings(report["tables"]) for fault in _texts(one["faults"])]
    return {"lake": report["lake"], "checked": report["checked"], "faults": faults}


def _state_text(table: Mapping[str, Tree]) -> str:
    if table["state"] == BLOCKED:
        return f"{BLOCKED} (no key: log only)"
    since = f" since {table['dropped_at']}" if table["dropped_at"] else ""
    return f"{table['state']}{since}"


def _line(table: Mapping[str, Tree]) -> str:
    versions = ", ".join(f"{name} {table[name]}" for name in ("log", "replica") if table.get(name) is not None)
    stopped = "".join(f"; not written: {reason}" for reason in _texts(table["not_written"]))
    state = f"{_state_text(table)} at {table['position']}"
    return f"{table['name']}: {state}, {versions}, {table['folder']}{stopped}"


def _delta_tree(delta: Tree) -> Tree:
    shown = dict(_mapping(delta))
    shown["columns"] = [_column(column) for column in _mappings(shown["columns"])]
    return shown


def _column(column: Mapping[str, Tree]) -> str:
    declared = f" ({column['source_type']})" if column["source_type"] else ""
    comment = f": {column['comment']}" if column["comment"] else ""
    return f"{column['name']} {column['type']}{declared}{comment}"


def _mapping(tree: Tree) -> Mapping[str, Tree]:
    assert isinstance(tree, Mapping), tree
    return tree


def _mappings(tree: Tree) -> Sequence[Mapping[str, Tree]]:
    assert isinstance(tree, Sequence), tree
    return [_mapping(one) for one in tree]


def _texts(tree: Tree) -> Sequence[str]:
    assert isinstance(tree, Sequence), tree
    return [str(text) for text in tree]
