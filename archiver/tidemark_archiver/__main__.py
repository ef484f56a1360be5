"""`python -m tidemark_archiver`: the process that reads archived WAL; see `tidemark_archiver.archive`."""

from tidemark.io.process.config import Config
from tidemark.model.mode import Role
from tidemark.runtime.daemon.service import DaemonContext, daemon_command
from tidemark_archiver.archive import Archive, ArchiveSettings


def _archive(daemon: DaemonContext, config: Config) -> Archive:
    segment_bytes = daemon.context.store.identity.segment_bytes
    return Archive(daemon, ArchiveSettings.of(config, segment_bytes, daemon.plugins, daemon.template))


main = daemon_command(Role.ARCHIVER, "Read archived WAL, and deliver while the sidecar cannot.", _archive)

if __name__ == "__main__":
    main()
