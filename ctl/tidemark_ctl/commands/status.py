"""`cdcctl status`: shows the contents of the state folder, with or without a daemon (I41)."""

from collections.abc import Mapping
from pathlib import Path

import click

from tidemark.io.archive.archive_state import ArchiveState
from tidemark.io.host.clock import SystemClock
from tidemark.io.process.config import Config
from tidemark.io.process.metrics_ports import assigned_ports
from tidemark.io.state.reader_holds import held_bytes, unconfirmed_values
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.io.state.state_views import StateView
from tidemark.model.commit_time import USECS_PER_SECOND
from tidemark.model.lsn import Oid, format_lsn
from tidemark.model.mode import Role
from tidemark.model.relation import Relation
from tidemark.model.table_name import TableName
from tidemark.wire.recopies import REFUSED_HINT, RecopyStep, recopies_by_table, step_of
from tidemark.wire.relations import SchemaVersion
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress, Recopy
from tidemark.wire.state.values import Watermark
from tidemark_ctl import settings
from tidemark_ctl.options import config_option, json_option, state_option
from tidemark_ctl.views.archive_tree import archive_tree
from tidemark_ctl.views.lake_tree import lake_tree
from tidemark_ctl.views.parked_tree import left_out_tree
from tidemark_ctl.views.plugins_tree import plugins_tree
from tidemark_ctl.views.processes import ends_tree, process_tree, server_tree, waits_for_space
from tidemark_ctl.views.reader_tree import held_tree
from tidemark_ctl.views.realtime_tree import (
    Observation,
    archiver_lag,
    arriving_text,
    following_tree,
    observe,
    rewind_text,
    stage_tree,
)
from tidemark_ctl.views.render import Tree, show


@click.command()
@state_option
@config_option
@json_option
def status(state: Path, *, config: Path | None, as_json: bool) -> None:
    """Show mode, positions, outbox, readers, first copies and archive, read from the folders only."""
    chosen = settings.load(state, config)
    with StateStore.open(StateFolder(state), read_only=True) as store:
        observed = observe(store, chosen.archive, chosen.watchdog.watchdog_s)
        ends = ends_tree(store, as_json=as_json)
        file_bytes = store.environment.file_bytes()
        relations = store.relations()
        free_bytes = store.environment.free_bytes()
        plugins, left_out = store.plugins(), left_out_tree(store)
        space_waits = {
            process.role: waits_for_space(store, process) for process in (observed.sidecar, observed.archiver)
        }
    tree = {
        **describe(observed, SystemClock().wall_us()),
        **plugins_tree(plugins),
        **left_out,
        "first_copy": _first_copy(observed.view, relations),
        "recopy": _recopy(observed.view),
        "lake": lake_tree(state),
        "archive": _archive(observed),
        "sidecar": process_tree(observed.sidecar, space_waits[Role.SIDECAR]),
        "archiver": process_tree(observed.archiver, space_waits[Role.ARCHIVER]),
        "server": server_tree(StateFolder(state)),
        "metrics_ports": _metrics_ports(StateFolder(state), chosen),
        "last_end": ends,
        "state_file_bytes": file_bytes,
        "state_free_bytes": free_bytes,
    }
    show(tree, as_json=as_json)


def describe(observed: Observation, now_us: int) -> dict[str, Tree]:
    """Return the content of the state, by name."""
    view = observed.view
    ledger = view.ledger
    held = held_bytes(view.readers, ledger)
    return {
        "capture": view.identity.capture,
        "system_identifier": str(view.identity.system_identifier),
        "server_major": view.identity.server_major,
        **stage_tree(observed),
        "following": following_tree(view),
        "delivered": _watermark(view.delivered, now_us),
        "confirmed": _watermark(view.horizon, now_us),
        "lag": {
            "delivered_behind_archive": archiver_lag(observed),
            "confirmed_behind_delivered_bytes": _unconfirmed_bytes(view),
            "unconfirmed_values": unconfirmed_values(view.readers, ledger),
        },
        "outbox": {
            "id": view.identity.outbox_id,
            "head": ledger.head,
            "trimmed": ledger.trimmed,
            "bytes": ledger.byte_count,
            "bytes_max": view.identity.outbox_bytes_max,
        },
        "readers": {
            name: {
                "held": reader.applied,
                "replayable": reader.replayable,
                "behind": ledger.head - reader.applied,
                **held_tree(reader, held.get(name)),
            }
            for name, reader in view.readers.items()
        },
        "losses": view.losses.count,
        "rewinds": [rewind_text(rewind) for rewind in view.rewinds.kept],
        "catalog_bases": [f"{format_lsn(base.lsn)} ({base.byte_count} bytes)" for base in view.history.bases],
    }


def _first_copy(view: StateView, relations: Mapping[SchemaVersion, tuple[Oid, Relation]]) -> Tree:
    """Return the progress of the first copy; `waiting`: last known names of tables that the next start copies."""
    latest = {(database, relation.oid): relation for _, (database, relation) in sorted(relations.items())}
    copied = [copy for copy in view.copies.values() if copy.generation]
    return {
        "tables_done": sum(copy.phase is CopyPhase.DONE for copy in copied),
        "tables": sum(bool(copy.generation) or copy.is_open for copy in view.copies.values()),
        "rows": sum(copy.row_count for copy in copied),
        "waiting": [
            latest[key].qualified_name if key in latest else f"OID {key[1]} in database {key[0]}"
            for key, copy in sorted(view.copies.items())
            if copy.phase is CopyPhase.WAITING
        ],
        "refused": {
            _refused_name(copy, latest.get(key)): f"existing rows are not captured: {REFUSED_HINT}"
            for key, copy in sorted(view.copies.items())
            if copy.phase is CopyPhase.REFUSED
        },
    }


def _refused_name(copy: CopyProgress, latest: Relation | None) -> str:
    """Return the name for `cdcctl table recopy`: since the refusal, the stream may have reported another one."""
    if latest is None:
        return copy.refused_name
    return str(TableName(latest.namespace, latest.name, TableName.parse(copy.refused_name).database))


def _recopy(view: StateView) -> dict[str, Tree]:
    """Return the progress of the copies that `cdcctl table recopy` requested, until they end."""
    requests = recopies_by_table(view.recopies)
    copies = {key: view.copies.get(key) for key in requests}
    return {
        request.name: _recopy_text(step, request, copies[key])
        for key, request in requests.items()
        if not (step := step_of(request, copies[key])).is_over or step is RecopyStep.FAILED
    }


def _recopy_text(step: RecopyStep, request: Recopy, copy: CopyProgress | None) -> str:
    step_text = str(step.value)
    if step is RecopyStep.FAILED:
        return f"{step_text}: {request.failed}"
    if step is not RecopyStep.COPYING or copy is None:
        return step_text
    return f"{step_text}: {copy.row_count} rows of generation {copy.generation}"


def _metrics_ports(folder: StateFolder, config: Config) -> Tree:
    """Return the addresses of the metrics, from the configuration and from `init`."""
    assigned = assigned_ports(folder)
    own: dict[str, Tree] = {"sidecar": config.metrics.port, "archiver": config.metrics.archiver_port}
    return (own if config.metrics.enabled else {}) | {"pipeline": assigned.pipeline if assigned is not None else None}


def _archive(observed: Observation) -> Tree:
    if observed.archive is None:
        return None
    if not isinstance(observed.archive, ArchiveState):
        return str(observed.archive)
    return {**archive_tree(observed.archive, observed.view), "arriving": arriving_text(observed)}


def _unconfirmed_bytes(view: StateView) -> Tree:
    if view.delivered is None or view.horizon is None:
        return None
    return view.delivered.pointer.position.commit_lsn - view.horizon.pointer.position.commit_lsn


def _watermark(mark: Watermark | None, now_us: int) -> Tree:
    if mark is None:
        return None
    return {
        "position": str(mark.pointer.position),
        "restart_lsn": format_lsn(mark.pointer.restart_lsn),
        "sequence": mark.sequence,
        "commit_age_s": round((now_us - mark.commit_time_us) / USECS_PER_SECOND, 3) if mark.commit_time_us else None,
    }
