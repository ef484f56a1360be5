"""`python -m tidemark_sidecar`: the realtime process; see `tidemark_sidecar.realtime`."""

from tidemark.io.process.config import Config
from tidemark.model.mode import Role
from tidemark.runtime.daemon.service import DaemonContext, daemon_command
from tidemark_sidecar.realtime import Realtime, RealtimeSettings


def _realtime(daemon: DaemonContext, config: Config) -> Realtime:
    segment_bytes = daemon.context.store.identity.segment_bytes
    return Realtime(daemon, RealtimeSettings.of(config, segment_bytes, daemon.plugins, daemon.template))


main = daemon_command(Role.SIDECAR, "Capture changes of a PostgreSQL node in realtime.", _realtime)

if __name__ == "__main__":
    main()
