"""The archive command of servers whose tests start Tidemark's programs by forks.

An archive command of its own, executed for each segment, costs 0.06 s of a CPU: most of it are imports. The one here
is a shell script that connects to a process which has imported it (`archive_forks`).
"""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ENDED_S = 60
# umask, folder and arguments, a line each, and an empty line; then lines of standard error, and the exit code.
CLIENT = """#!/bin/bash
exec 3<>/dev/tcp/127.0.0.1/{port}
{{ umask; pwd -P; printf '%s\\n' "$@"; echo; }} >&3
while IFS= read -r line <&3; do
    case $line in "exit "*) exit "${{line#exit }}" ;; esac
    printf '%s\\n' "$line" >&2
done
exit 1
"""

_forks: list["ArchiveForks"] = []  # at most one


class ArchiveForks:
    """The process that forks archive commands, started by the first server that archives, and their script."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._script = ""

    def script(self, packages: Path, python: str, server_folder: Path) -> str:
        """Return the script's path; the owner of the server's folder runs it, and can read `packages`."""
        if self._process is None:
            program, owner = packages / "archive_forks.py", server_folder.stat()
            shutil.copy(Path(__file__).with_name(program.name), program)
            is_root = os.geteuid() == 0
            with socket.create_server(("127.0.0.1", 0)) as listener:
                self._process = subprocess.Popen(
                    [python, "-S", "-B", str(program), str(listener.fileno())],
                    stdin=subprocess.PIPE,
                    pass_fds=[listener.fileno()],
                    cwd=packages,
                    env={"PYTHONPATH": str(packages)},
                    start_new_session=True,  # an interrupt of the test run must not reach it before the servers
                    user=owner.st_uid if is_root else None,
                    group=owner.st_gid if is_root else None,
                    extra_groups=[] if is_root else None,
                )
                script = packages / "cdcctl-archive"
                script.write_text(CLIENT.format(port=listener.getsockname()[1]))
            script.chmod(0o755)
            self._script = str(script)
        return self._script

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.communicate(timeout=ENDED_S)


@contextmanager
def forked_archiving() -> Iterator[None]:
    """Let servers archive by forks as long as the context lasts."""
    forks = ArchiveForks()
    _forks.append(forks)
    try:
        yield
    finally:
        _forks.remove(forks)
        forks.close()


def forked_archive_program(packages: Path, python: str, server_folder: Path) -> str | None:
    """Return the script, or None if the archive command is to be executed."""
    return _forks[0].script(packages, python, server_folder) if _forks else None
