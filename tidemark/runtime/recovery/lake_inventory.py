"""Reads the inventory of a lake in a separate program, so that the caller needs no library for Delta tables."""

import os
import subprocess
from dataclasses import dataclass

from tidemark.io.host.extras import SPARK
from tidemark.io.host.python_program import python_program
from tidemark.io.process.lake_config import LakeConfig, store_environment
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import Lsn, Oid, TimelineId
from tidemark.model.position import Position, Sequence
from tidemark.runtime.recovery.rebuild import LakeInventory
from tidemark.wire.json_form import JsonForm
from tidemark.wire.state.values import Identity

ANSWER_S = 120.0  # for a positions table of thousands of tables, on remote storage
_HINT = "name the folder that `cdcctl spark run --lake` wrote"


@dataclass(frozen=True, slots=True)
class _InventoryJson:
    sequence: int
    position: tuple[int, int, int]  # timeline, commit LSN, ordinal
    tables: list[tuple[int, int, int, bool]]  # database, relation, generation; False: its copy is incomplete


_INVENTORY: JsonForm[_InventoryJson] = JsonForm(_InventoryJson)


def lake_inventory(lake: str, identity: Identity, config: LakeConfig) -> LakeInventory:
    """Return the inventory of a capture's lake; raise `ConfigError` if the lake contains none of the capture.

    `config` has the options of the lake's object store.
    """
    SPARK.require()
    arguments = [lake, identity.capture, str(identity.system_identifier)]
    command = python_program("tidemark.pipeline.lake.inventory", *arguments)
    environment = {**os.environ, **store_environment(config)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=ANSWER_S, env=environment)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"the lake {lake} did not answer within {ANSWER_S:.0f} s", hint=_HINT) from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ConfigError(f"the capture cannot continue from the lake: {reason}", hint=_HINT)
    inventory = _INVENTORY.read(done.stdout.encode())
    timeline, commit_lsn, ordinal = inventory.position
    return LakeInventory(
        Sequence(inventory.sequence),
        {(Oid(database), Oid(relation)): number for database, relation, number, whole in inventory.tables if whole},
        {(Oid(database), Oid(relation)): number for database, relation, number, whole in inventory.tables if not whole},
        Position(TimelineId(timeline), Lsn(commit_lsn), ordinal),
    )
