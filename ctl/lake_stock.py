"""What a lake holds, asked of a program of its own: `cdcctl` itself needs nothing that reads Delta tables."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from tidemark.model.errors import ConfigError
from tidemark.model.lsn import Oid
from tidemark.model.position import Sequence
from tidemark.runtime.rebuild import LakeStock
from tidemark.wire.state import Identity

_HINT = "name the folder that `cdcctl spark run --lake` wrote; without --lake every table is copied again"


@dataclass(frozen=True, slots=True)
class _Told:
    sequence: int
    tables: list[tuple[int, int, int]]  # database, relation, generation


def lake_stock(lake: Path, identity: Identity) -> LakeStock:
    """Return what the lake of a capture holds; raise `ConfigError` if it has none of it."""
    asked = [str(lake.absolute()), identity.capture, str(identity.system_identifier)]
    command = [sys.executable, "-m", "tidemark.pipeline.stock", *asked]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ConfigError(f"the lake cannot be gone on with: {reason}", hint=_HINT)
    told = TypeAdapter(_Told).validate_json(done.stdout)
    generations = {(Oid(database), Oid(relation)): generation for database, relation, generation in told.tables}
    return LakeStock(Sequence(told.sequence), generations)
