"""The loss of the state folder: a new one is built from the manifest in the spool and the content of the target."""

import shutil
from dataclasses import replace

from tests.support.faults.chaos.world import ChaosWorld
from tidemark.io.archive.spool_manifest import NoHistoryCopy, read_manifest
from tidemark.io.process.config_loading import load_config
from tidemark.io.process.marker_key import make_marker_key
from tidemark.io.state.state import StateStore
from tidemark.runtime.recovery.rebuild import rebuild

NEVER_S = 1e9


def lose_state(world: ChaosWorld) -> None:
    """Kill both processes, remove the folder, rebuild it, and start again."""
    world.print_progress(f"[{world.ticks:6}] the state is lost, in stage {world.stage.value}")
    world.wait_for(lambda: _is_copied(world), "the spool's copy of the catalog history")
    world.wait_for(world.target.contains_any, "anything in the target")
    for keeper in world.keepers:
        keeper.kill(NEVER_S)
    world.wait_for(lambda: not any(keeper.process.running for keeper in world.keepers), "the end of both")
    world.maintain()  # exits are checked against the state that exists
    world.target.leave()
    identity, folder = world.store.identity, world.store.folder
    world.close_store()
    shutil.rmtree(folder.root)
    config = load_config(None, world.sidecar.options)
    config = replace(config, outbox=replace(config.outbox, bytes_max=identity.outbox_bytes_max))
    assert rebuild(config, folder, world.node.spool, world.target.inventory(identity))
    make_marker_key(config, folder)
    world.store = StateStore.open(folder)
    world.markers.forget()
    world.target.rejoin()
    for keeper in world.keepers:
        keeper.back_now()
    world.wish = "on"


def _is_copied(world: ChaosWorld) -> bool:
    try:
        return read_manifest(world.node.spool).journal.end_lsn > 0
    except NoHistoryCopy:
        return False
