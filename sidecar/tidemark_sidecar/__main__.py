"""`python -m tidemark_sidecar`: the realtime process; see `tidemark_sidecar.realtime`."""

from tidemark.model.mode import Role
from tidemark.runtime.daemon.service import daemon_command
from tidemark_sidecar.realtime import Realtime

main = daemon_command(Role.SIDECAR, "Capture changes of a PostgreSQL node in realtime.", Realtime)

if __name__ == "__main__":
    main()
