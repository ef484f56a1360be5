"""`python -m tidemark.pipeline.driver.table_removal`: the program behind `cdcctl lake remove`; prints one JSON object.

    STATE LAKE CONFIG READER [FOLDER POSITION]...

CONFIG: the configuration with the options of an object store, or empty. No pipeline writes the lake meanwhile; if one
has begun to, which only an object store allows, the program ends, and the pipeline completes the removal.
POSITION: of the table as it was listed; one that changed since is kept.
"""

import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tidemark.io.host.disk import is_full
from tidemark.io.host.failpoints import arm_from_environment
from tidemark.io.process.config_loading import load_config
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state_folder import StateFolder
from tidemark.pipeline.driver.capture_place import StatePlace
from tidemark.pipeline.failpoints import MaintenanceFailpoint
from tidemark.pipeline.failures import first_reason
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.report import OpenedLake
from tidemark.pipeline.lake.tables.table_errors import LakeFull, lake_failure
from tidemark.pipeline.landing.folder_removal import remove_tables
from tidemark.pipeline.landing.lake_epoch import hold_lake
from tidemark.pipeline.replay.program import exit_at_once, run
from tidemark.pipeline.storage.stores import open_lake


def _removed(state: str, lake: str, config: str, reader: str, *tables: str) -> Mapping[str, object]:
    listed = dict(zip(tables[::2], tables[1::2], strict=True))
    loaded = load_config(Path(config) if config else None, os.environ)
    open_lake(lake, loaded.lake)
    OpenedLake(lake)  # NB: before the lock, which is written also where no lake is
    with StatePlace(StateFolder(Path(state)), loaded.select.selection()).open() as found:
        identity = found.outbox.identity
        # NB: without its pipeline's lock, a running pipeline could write to a table meanwhile.
        with (
            RoleLock.acquire(found.folder, f"pipeline-{reader}"),
            hold_lake(lake, identity, found.capture.facts(), reader, alone=True) as hold,
        ):
            try:
                result = remove_tables(lake, Positions(lake, identity), identity.capture, listed, hold.check)
            except OSError as error:
                reason = f"{lake}: {first_reason(str(error))}"
                raise LakeFull(reason) if is_full(error) else lake_failure(error, reason) from error
    return {"removed": result.removed, "kept": result.kept}


if __name__ == "__main__":
    arm_from_environment(MaintenanceFailpoint)
    exit_at_once(run(partial(_removed, *sys.argv[1:])))
