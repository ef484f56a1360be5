"""A rebuilt state folder where the WAL contains try-start markers of the lost one."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.plugins.daemons import use_config
from tests.support.processes.captures import change_log, replayed
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.processes.failover import HANGS_SOON, Pair, paired
from tests.support.servers.archiving import ArchivingServer, archive_script
from tidemark.engine.handover import Event
from tidemark.io.archive.spool_manifest import read_manifest
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.log_output import get_log
from tidemark.io.state.state import StateStore
from tidemark.io.state.switching import switch
from tidemark.model.change import ChangeBatch, GroupItem, SchemaEffect, SchemaEvent
from tidemark.model.mode import Stage
from tidemark.wire.state.values import HandOver

RETURNS_SOON = {"TIDEMARK_REALTIME__ARCHIVE_WAIT_S": "1"}  # of a rebuilt state, whose archiver does not run
MASK = "[[transforms]]\nuse = 'tidemark:Mask'\ncolumns = ['public.account.note']\nconstant = '{}'\n"


def rebuild_state(pair: Pair, root: Path) -> None:
    """Kill both processes, lose the state except for the marker key, and rebuild it from the spool."""
    delivered = pair.sidecar.status()["delivered"]
    spool = pair.archiving.spool
    pair.wait_for(lambda: str(read_manifest(spool).start.position) >= str(delivered), "a manifest")
    pair.sidecar.kill()
    pair.archiver.kill()
    folder = pair.sidecar.folder
    key = (folder.root / "marker.key").read_bytes()
    shutil.rmtree(folder.root)
    config = root / "fresh.toml"
    config.write_text("")
    command = ("init", "--state", folder.root, "--config", config, "--from-spool", spool.folder)
    succeeded(cdcctl(*command, **pair.sidecar.options, TIDEMARK_ARCHIVE__PROGRAM=str(archive_script())))
    (folder.root / "marker.key").write_bytes(key)


def test_a_marker_of_the_lost_states_sidecar_is_not_mistaken_for_one_of_the_new_state(
    node: ArchivingServer, tmp_path: Path
) -> None:
    with (
        paired(node, tmp_path, options=HANGS_SOON) as pair,
        pair.node.connect("postgres") as session,
        session.transaction(),
    ):
        session.execute("INSERT INTO account VALUES (1, 'open from before the marker on')")
        pair.switch_off()
        pair.switch_on()
        pair.wait_for_stage(Stage.REALTIME)
        pair.insert(2)
        pair.catch_up()
        rebuild_state(pair, tmp_path)
        with StateStore.open(pair.sidecar.folder) as store:
            attempt = store.view().hand_over.attempt + 1  # a sidecar that requests faster than the archiver reads
            now_us = SystemClock().wall_us()
            switch(store, Event.RETURN_READY, log=get_log("test"), now_us=now_us, hand_over=HandOver(attempt))
        pair.archiver.start()
        pair.insert(3)
        pair.wait_for_stage(Stage.ARCHIVE)
        assert pair.archiver.running, pair.reported()
        assert list(replayed(change_log(pair.catch_up(), "account"))) == [3]


@pytest.mark.parametrize(("config", "notes"), [(MASK.format("second"), {"second"}), ("", {"n2", "n3"})])
def test_after_a_rebuild_the_form_of_the_next_rows_is_announced_once_also_without_transforms(
    node: ArchivingServer, tmp_path: Path, config: str, notes: set[str]
) -> None:
    with paired(node, tmp_path, options=RETURNS_SOON) as pair:
        pair.sidecar.kill()
        pair.archiver.kill()
        use_config(MASK.format("first"), pair.sidecar, pair.archiver)
        pair.sidecar.start()
        pair.archiver.start()
        pair.insert(1)
        pair.catch_up()
        rebuild_state(pair, tmp_path)
        use_config(config, pair.sidecar, pair.archiver)
        for row in (2, 3):
            pair.sidecar.start()
            pair.insert(row)
            items = pair.catch_up()
            pair.sidecar.kill()
        assert announced(items) == ["account"]
        kinds = [type(item) for item in items if isinstance(item, ChangeBatch | SchemaEvent)]
        assert kinds[:2] == [SchemaEvent, ChangeBatch]
        assert {row["_after"]["note"] for row in change_log(items, "account")} == notes  # type: ignore[index]


def announced(items: Sequence[GroupItem]) -> list[str]:
    """Return the tables whose form of rows is announced."""
    events = [item for item in items if isinstance(item, SchemaEvent) and item.effect is SchemaEffect.TRANSFORMS]
    return [event.after.name for event in events if event.after is not None]
