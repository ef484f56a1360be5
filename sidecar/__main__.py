"""`python -m sidecar`: the realtime process. What it does is `sidecar.realtime`."""

from sidecar.realtime import Realtime
from tidemark.model.mode import Role
from tidemark.runtime.daemon.service import daemon_command

main = daemon_command(Role.SIDECAR, "Capture changes of a PostgreSQL node in realtime.", Realtime)

if __name__ == "__main__":
    main()
