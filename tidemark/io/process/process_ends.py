"""The last end of each process, as the state records it; for people and metrics.

Apart from `tidemark.io.process.run_record`, which logs: `cdcctl status` does not load the log's library.
"""

from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state_folder import StateFolder
from tidemark.wire.state.process_log import ProcessEnd, ProcessLog

KILLED = "killed: the process did not record its end"


def last_ends(folder: StateFolder, known: ProcessLog) -> dict[str, ProcessEnd]:
    """Return the last end of each process; `KILLED` for a run without a recorded end whose process is gone."""
    gone = [role for role in known.running if not RoleLock.status(folder, role).is_locked]
    return {**known.ends, **{role: ProcessEnd(0, None, KILLED) for role in gone}}
