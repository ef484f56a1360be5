"""`python -m tidemark_archiver`: the process that reads archived WAL; see `tidemark_archiver.archive`."""

from tidemark.model.mode import Role
from tidemark.runtime.daemon.service import daemon_command
from tidemark_archiver.archive import Archive

main = daemon_command(Role.ARCHIVER, "Read archived WAL, and deliver while the sidecar cannot.", Archive)

if __name__ == "__main__":
    main()
