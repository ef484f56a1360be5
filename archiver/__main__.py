"""`python -m archiver`: the process that reads archived WAL. What it does is `archiver.archive`."""

from archiver.archive import Archive
from tidemark.model.mode import Role
from tidemark.runtime.daemon.service import daemon_command

main = daemon_command(Role.ARCHIVER, "Read archived WAL: deliver while the sidecar does not.", Archive)

if __name__ == "__main__":
    main()
