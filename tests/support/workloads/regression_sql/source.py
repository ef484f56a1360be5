"""PostgreSQL's own tests, from Debian's source package of the installed server, built at run time.

`apt-get source` downloads it into a separate folder below the servers' cache, with the machine's own Debian sources
changed to `deb-src`: the machine's files are not changed, and nothing of the package is added to this repository. The
C functions that the tests call and the driver of the isolation tests are built; that needs a compiler and make.
"""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers.servers import ServerMissing, cache_folder

PACKAGE = "postgresql-15"
DEBIAN_LIBRARIES = Path("/usr/lib/postgresql/15/lib")
TOOLS = ("apt-get", "dpkg-query", "dpkg-source", "gcc", "make")
CONTRIB_LIBRARIES = ("autoinc.so", "refint.so")  # also required by the tests
STEP_TIMEOUT_S = 1800
CONFIGURE = ("./configure", "--quiet", "--without-readline", "--without-zlib", "CFLAGS=-O1")
BUILD = (
    ("-C", "src/backend", "generated-headers"),
    ("-C", "src/test/regress", "regress.so"),
    ("-C", "src/test/isolation", "isolationtester"),
)


class SourceMissing(ServerMissing):
    """This machine cannot download or build the source package."""


@dataclass(frozen=True, slots=True)
class SourcePackage:
    """An unpacked and built source package."""

    version: str  # of the package
    root: Path

    @property
    def tests(self) -> Path:
        return self.root / "src" / "test" / "regress"

    @property
    def isolation(self) -> Path:
        return self.root / "src" / "test" / "isolation"

    @property
    def plugin(self) -> Path:
        """The tests of test_decoding."""
        return self.root / "contrib" / "test_decoding"

    @property
    def libraries(self) -> Path:
        return self.root / "tidemark-libraries"


def source() -> SourcePackage:
    """Return the package's source in the installed server's version; the first call downloads and builds it."""
    for tool in TOOLS:
        if shutil.which(tool) is None:
            raise SourceMissing(f"{tool} is needed for the source package {PACKAGE}, and it is not installed")
    version = _installed_version()
    folder = cache_folder() / f"source-{version}"
    made = SourcePackage(version, folder / "tree")
    if not made.libraries.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _download(folder, version)
        (unpacked,) = (path for path in folder.iterdir() if (path / "configure").exists())
        unpacked.rename(made.root)
        _build(made)
    return made


def _installed_version() -> str:
    asked = ["dpkg-query", "--show", "--showformat=${Version}", PACKAGE]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout:
        raise SourceMissing(f"the package {PACKAGE} is not installed: {done.stderr.strip()}")
    return done.stdout


def _download(folder: Path, version: str) -> None:
    """Let apt fetch, verify and unpack the source into `folder`."""
    parts = folder / "apt" / "sources"
    for needed in (parts, folder / "apt" / "lists" / "partial", folder / "apt" / "cache" / "archives" / "partial"):
        needed.mkdir(parents=True)
    for path in _debian_sources(folder):
        text = path.read_text().replace("Types: deb\n", "Types: deb-src\n")
        lines = ["deb-src " + line[4:] if line.startswith("deb ") else line for line in text.splitlines()]
        (parts / path.name).write_text("\n".join(lines) + "\n")
    apart = {
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": parts,
        "Dir::State::Lists": folder / "apt" / "lists",
        "Dir::Cache": folder / "apt" / "cache",
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "--quiet", *(f"--option={name}={value}" for name, value in apart.items())]
    _run([*apt, "update"], folder)
    _run([*apt, "source", "--only-source", f"{PACKAGE}={version}"], folder)


def _debian_sources(folder: Path) -> set[Path]:
    """Return the files that name the machine's Debian sources."""
    asked = ["apt-get", "indextargets", "--format", "$(SOURCESENTRY)", "Origin: Debian", "Created-By: Packages"]
    entries = _run(asked, folder).split()
    if not entries:
        raise SourceMissing("apt knows no source of Debian's: run apt-get update")
    return {Path(entry.rpartition(":")[0]) for entry in entries}


def _build(made: SourcePackage) -> None:
    _run(CONFIGURE, made.root)
    for target in BUILD:
        _run(("make", "--silent", *target), made.root)
    partial = made.libraries.with_suffix(".partial")
    partial.mkdir()
    (partial / "regress.so").symlink_to(made.tests / "regress.so")
    for name in CONTRIB_LIBRARIES:
        (partial / name).symlink_to(DEBIAN_LIBRARIES / name)
    partial.rename(made.libraries)


def _run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=STEP_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        reported = f"{done.stdout}\n{done.stderr}".strip()[-2000:]
        raise SourceMissing(f"{' '.join(command)} failed ({done.returncode}) in {folder}:\n{reported}")
    return done.stdout
