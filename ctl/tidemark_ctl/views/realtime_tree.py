"""The view of delivery: stage, epoch, hand-over, the archiver's lag, the recorded switches and rewinds."""

from dataclasses import dataclass
from pathlib import Path

from tidemark.io.archive.archive_listing import ArchiveListing
from tidemark.io.archive.archive_state import ArchiveState, NoArchive
from tidemark.io.archive.spool_access import known_user, spool_access_error
from tidemark.io.process.config import ArchiveConfig
from tidemark.io.process.marker_key import KeysDiffer
from tidemark.io.state.overtaken import OvertakenState
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_views import StateView
from tidemark.model.lsn import format_lsn
from tidemark.model.mode import Role, Stage
from tidemark.wire.state.event_logs import Rewind, Switch
from tidemark.wire.state.values import Archiving, MarkerKeys
from tidemark_ctl.views.archive_tree import usecs_text
from tidemark_ctl.views.embedded import EmbeddedEngine, embedded_engine
from tidemark_ctl.views.processes import Process, process_now, process_tree
from tidemark_ctl.views.render import Tree

ARCHIVE_S = 10.0  # after this time the view is printed without the archive
RETURNS = (Stage.RETURNING, Stage.RETURNED)
MISSING_WAL_HINT = (
    "while the node has that WAL in pg_wal, `cdcctl realtime on` continues from it without the archive; "
    "otherwise put the segments into the archive from a backup or a standby"
)
GIVE_UP_HINT = f"{MISSING_WAL_HINT}, or give them up with `cdcctl archive repair`"


@dataclass(frozen=True, slots=True)
class Observation:
    """The observations of one moment: the state, both processes, the archive's folder."""

    view: StateView
    sidecar: Process
    archiver: Process
    archive: ArchiveState | NoArchive | None  # None: no archive is configured
    marker_keys: MarkerKeys
    archiving: Archiving  # as last recorded by a daemon
    access_error: str | None  # why the server's user cannot fill the spool
    engine: EmbeddedEngine | None = None  # it delivers, in place of daemons

    @property
    def deliverer(self) -> Process | None:
        """The process that has the epoch, should deliver, and is alive."""
        role = self.view.stage.deliverer
        process = self.sidecar if role is Role.SIDECAR else self.archiver
        return process if role is not None and process.delivers(self.view.term) else None


def observe(store: StateStore, configured: ArchiveConfig, watchdog_s: float) -> Observation:
    """Collect all observations; an archive that hangs or cannot be listed does not prevent the others."""
    view = store.view()
    archive: ArchiveState | NoArchive | None = None
    archiving, access_error = store.archiving(), None
    if configured.folder:
        try:
            archive = ArchiveListing(Path(configured.folder), view.identity.segment_bytes).result(ARCHIVE_S)
            access_error = spool_access_error(configured, known_user(archiving))
        except NoArchive as error:
            archive = error
    sidecar, archiver = process_now(store, Role.SIDECAR, watchdog_s), process_now(store, Role.ARCHIVER, watchdog_s)
    engine = embedded_engine(store)
    return Observation(view, sidecar, archiver, archive, store.marker_keys(), archiving, access_error, engine)


def arriving_text(observed: Observation) -> str:
    """Return whether WAL arrives in the archive, as far as the folders and the daemons show."""
    archiving = observed.archiving
    if observed.access_error is not None:
        return f"it cannot: {observed.access_error}"
    reasons = []
    if archiving.is_off:
        reasons.append("archive_mode is off on the node: nothing is archived")
    if archiving.missing:
        reasons.append(f"{missing_text(archiving)} ({GIVE_UP_HINT})")
    if archiving.unrecorded:
        reasons.append(
            f"{archiving.unrecorded} segments from {archiving.unrecorded_first} on never arrived, although the "
            "server reports them as archived: a hole without a record"
        )
    if archiving.waiting_since_us:
        since = usecs_text(archiving.waiting_since_us)
        reasons.append(f"no segment was archived since {since}: {archiving.waiting} segments wait")
    return "; ".join(reasons) or "no complete segment waits"


def missing_text(archiving: Archiving) -> str:
    """Return the segments that will not arrive but that delivery from the archive waits for; there is at least one."""
    why = "archive_mode was off when they were written" if archiving.off_lsn else "the archive has later segments"
    return f"{archiving.missing} segments from {archiving.missing_first} on are missing and will not arrive: {why}"


def stage_tree(observed: Observation) -> dict[str, Tree]:
    """Return the deliverer and the start of its delivery."""
    view = observed.view
    last = view.switches.kept[-1] if view.switches.kept else None
    owner = view.term.owner if view.term is not None else None
    return {
        "mode": view.stage.mode.value,
        "stage": view.stage.value,
        "delivering": observed.deliverer.role.value if observed.deliverer is not None else "nobody",
        "epoch": str(view.term.epoch) if view.term is not None else None,
        "owner": f"{owner.role}, process {owner.pid} on {owner.host}" if owner is not None else None,
        "since": usecs_text(last.at_us) if last is not None else None,
        "reason": last.reason if last is not None else None,
        **({"engine": engine_text(observed.engine)} if observed.engine is not None else {}),
        **({"fenced": str(OvertakenState(view.overtaken))} if view.overtaken is not None else {}),
        "marker_keys": "one" if observed.marker_keys.are_one else f"{KeysDiffer()}; {KeysDiffer.hint}",
    }


def engine_text(engine: EmbeddedEngine) -> str:
    """Return which process has the state of an engine, and what to do, as one line."""
    return f"this state belongs to {engine}; {engine.hint}"


def following_tree(view: StateView) -> Tree:
    """Return a follower's progress, and the deliverer by its last marker; None if the capture does not follow."""
    followed, confirmed = view.followed, view.delivered
    if followed is None:
        return None
    leader = followed.leader
    return {
        "followed": str(followed.pointer.position),
        "can_take_over": followed.has_start,
        "deliverer_confirmed": str(confirmed.pointer.position) if followed.has_start and confirmed else None,
        "deliverer_epoch": str(leader.epoch) if leader is not None else None,
        "marker_lsn": format_lsn(leader.lsn) if leader is not None else None,
    }


def realtime_tree(observed: Observation, *, switches: int, as_json: bool) -> dict[str, Tree]:
    """Return the view of `cdcctl realtime status`."""
    kept = observed.view.switches.kept[-switches:] if switches else ()
    return {
        **stage_tree(observed),
        "following": following_tree(observed.view),
        "hand_over": _hand_over(observed.view),
        "archiver_lag": archiver_lag(observed),
        "sidecar": process_tree(observed.sidecar),
        "archiver": process_tree(observed.archiver),
        "switches_ever": observed.view.switches.count,
        "switches": [_switch_tree(each) if as_json else _switch_text(each) for each in kept],
    }


def archiver_lag(observed: Observation) -> Tree:
    """Return the distance from delivery to the archive's end: the WAL that the archiver has, or would have, to read."""
    delivered, archive = observed.view.delivered, observed.archive
    if not isinstance(archive, ArchiveState) or archive.end_lsn is None or delivered is None:
        return None
    lag_bytes = max(0, archive.end_lsn - delivered.pointer.position.commit_lsn)
    return {
        "archive_end_lsn": format_lsn(archive.end_lsn),
        "bytes": lag_bytes,
        "segments": round(lag_bytes / archive.segment_bytes, 2),
    }


def _hand_over(view: StateView) -> Tree:
    if view.stage not in RETURNS:
        return None
    hand_over = view.hand_over
    return {
        "attempt": hand_over.attempt,
        "marker_lsn": format_lsn(hand_over.lsn) if view.stage is Stage.RETURNED else None,
    }


def _switch_text(each: Switch) -> str:
    return (
        f"{usecs_text(each.at_us)}  {each.before.value} -> {each.after.value}  epoch {each.epoch or '-'}"
        f"  delivered {each.delivered or '-'}  {each.reason}"
    )


def _switch_tree(each: Switch) -> Tree:
    return {
        "at": usecs_text(each.at_us),
        "before": each.before.value,
        "after": each.after.value,
        "reason": each.reason,
        "epoch": str(each.epoch) if each.epoch is not None else None,
        "delivered": each.delivered or None,
    }


def rewind_text(rewind: Rewind) -> str:
    """Return a rewind as one line."""
    return (
        f"{usecs_text(rewind.at_us)}: timeline {rewind.timeline} from {format_lsn(rewind.fork_lsn)} to "
        f"{format_lsn(rewind.delivered.commit_lsn)} was delivered, but is not part of the node's history; "
        f"resumed at {rewind.resumed_timeline}:{format_lsn(rewind.resumed_lsn)}; {rewind.tables} tables to copy again"
    )
