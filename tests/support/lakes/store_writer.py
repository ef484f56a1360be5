"""The delivery of a pipeline without Spark, in processes of which each but the last is killed at a failpoint.

python -m tests.support.lakes.store_writer ROOT ENDPOINT STATE BATCHES FAILPOINT...    "" for none; prints exit codes
"""

import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from tests.support.lakes.lakes import IDENTITY, batch
from tests.support.lakes.scripted_table import ScriptedTable
from tidemark.io.host.failpoints import VARIABLE, arm_from_environment
from tidemark.io.process.lake_config import LakeConfig
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.landing.lake_epoch import LakeEpoch
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.steps import Delivered
from tidemark.pipeline.storage.stores import open_lake


def batches_of(table: ScriptedTable, count: int) -> Iterator[list[Delivered]]:
    """Yield the items of `count` transactions, the same in each process: a new row, and a change of each row."""
    for key in range(count):
        begun = len(table.items)
        table.commit()
        table.insert({1: key, 2: "new", 3: None})
        for other in range(key):
            table.update((other,), {2: f"changed {key}"})
        table.cut()
        yield table.delivered()[begun:]


def write(root: str, endpoint: str, state: Path, count: int) -> None:
    """Take the lake, and write the batches that it lacks."""
    config = LakeConfig(store_endpoint=endpoint)
    open_lake(root, config)
    LakeEpoch.take(root, IDENTITY, state, "spark", ())
    lake = Lake(root, IDENTITY, shape_of, constants_of, config=config)
    for items in batches_of(ScriptedTable(), count):
        if later := [item for item in items if item.sequence > lake.positions.applied.sequence]:
            lake.apply(batch(later))


def write_in_process(failpoint: str, root: str, endpoint: str, state: Path, count: int) -> int:
    """Write in a process that begins as this one, without threads; return its exit code."""
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    try:
        os.environ[VARIABLE] = failpoint
        arm_from_environment(Failpoint)
        write(root, endpoint, state, count)
    except BaseException:  # noqa: BLE001 - nothing of the parent may run here
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    place, server, folder, batches, *failpoints = sys.argv[1:]
    for each in failpoints:
        sys.stdout.write(f"{each} {write_in_process(each, place, server, Path(folder), int(batches))}\n")
