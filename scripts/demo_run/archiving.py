"""The server's archive_command: the line that `cdcctl init` prints, with a program that the server's user can run."""

import re
import shutil
import sys
from pathlib import Path

from scripts.demo_run.server import Server

PROGRAM = "cdcctl-archive"
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
SOURCES = Path(__file__).parents[2]
LEAN = ("archiver", "tidemark")  # all that the program imports, beside the standard library
_LINE = re.compile(r"^archive_command = '(\S+) (.*)'$", re.MULTILINE)


def archive_line(told: str, server: Server, folder: Path) -> str:
    """Return the line for postgresql.conf out of what `cdcctl init` told.

    Where we are root the server is somebody else, who may not look into our .venv: then a copy of the program is made
    in `folder`, with a Python of the system. It needs nothing but the standard library.
    """
    found = _LINE.search(told)
    if found is None:
        raise SystemExit(f"cdcctl init printed no archive_command:\n{told}")
    program, arguments = found.groups()
    if server.may_run(program, "--help"):
        return found.group(0)
    return f"archive_command = '{_copied(server, folder)} {arguments}'"


def _copied(server: Server, folder: Path) -> str:
    for package in LEAN:
        shutil.copytree(SOURCES / package, folder / package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)  # whatever umask the clone was made with
    pythons = (str(Path(sys.executable).resolve()), shutil.which("python3", path=SYSTEM_PATH))
    for python in filter(None, pythons):
        words = ("/usr/bin/env", f"PYTHONPATH={folder}", python, "-S", "-B", "-m", "archiver.archive_command")
        if server.may_run(*words, "--help"):
            return " ".join(words)
    raise SystemExit(
        f"the server's user {server.os_user} can run neither {PROGRAM} nor a Python 3.11 of the system, and could not "
        "archive: run scripts/demo as another user than root"
    )
