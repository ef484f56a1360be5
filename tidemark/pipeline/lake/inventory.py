"""`python -m tidemark.pipeline.lake.inventory LAKE CAPTURE SYSTEM_IDENTIFIER`: the lake inventory as one line of JSON.

`cdcctl init --from-spool` and a follower at its promotion use it; they must not depend on packages that read Delta.
"""

import json
import os
import sys

from tidemark.io.process.config_loading import load_config
from tidemark.model.errors import ConfigError, ExitCode, TidemarkError
from tidemark.model.lsn import INVALID_OID, SystemIdentifier
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.positions.table_position import TableState
from tidemark.pipeline.storage.stores import open_lake
from tidemark.wire.state.values import Identity

_COPIED = (TableState.LIVE, TableState.BLOCKED, TableState.STALE)


def main(arguments: list[str]) -> int:
    """Print the lake inventory; return the exit status."""
    root, capture, system_identifier = arguments
    owner = Identity(capture, SystemIdentifier(int(system_identifier)), "", 0, 0, 0)
    try:
        open_lake(root, load_config(None, os.environ).lake)
        positions = Positions(root.rstrip("/"), owner)
        if not positions.outbox:
            raise ConfigError(f"{root} is not a lake of this capture")
    except TidemarkError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    recorded = positions.recorded
    sequences = [positions.applied.sequence, *(table.sequence for table in recorded.values())]
    tables = [
        [*key, table.generation, table.state in _COPIED]
        for key, table in recorded.items()
        if table.relation != INVALID_OID
    ]
    # NB: an interrupted batch is in some tables already, and not yet in the row for the whole lake.
    at = max([positions.applied.position, *(table.position for table in recorded.values())])
    content = {
        "sequence": max(sequences),
        "position": [at.timeline, at.commit_lsn, at.ordinal],
        "tables": tables,
    }
    sys.stdout.write(json.dumps(content) + "\n")
    return ExitCode.SUCCESS


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # NB: Arrow's threads may still read ahead; destroying its C++ objects meanwhile occasionally ends in SIGABRT.
    os._exit(status)
