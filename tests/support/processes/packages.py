"""The wheel and the sdist of this tree, and virtual environments with one of them and its requirements.

The required packages are linked from the environment of the tests: those that the distribution's metadata names,
those that these name, and no other. pip then installs it without an index, which fails if a requirement is missing.
With TIDEMARK_PACKAGES_FROM=index pip installs everything from its index instead.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.parser import Parser
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.processes.cdcctl import environment

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ("archiver", "conf", "ctl", "docs", "pyspark_tidemark", "pyspark_tidemark_archive", "sidecar", "tidemark")
FILES = ("LICENSE", "README.md", "pyproject.toml", "setup.py")
FROM_INDEX = os.environ.get("TIDEMARK_PACKAGES_FROM") == "index"
INSTALL_S = 1800.0  # from an index, PySpark is built from an archive of 435 MB
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
BUILD_SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"


def run(*command: str | Path, cwd: Path | None = None, **variables: str) -> str:
    """Run a program to its end; return its output."""
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
        cwd=cwd,
        env=environment(**variables),
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def copy_sources(to: Path) -> None:
    """Copy the sources of a distribution, without a repository; compiled kernels are copied too."""
    for name in SOURCES:
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in FILES:
        shutil.copy2(ROOT / name, to / name)
    if (ROOT / "build" / "cython").exists():
        shutil.copytree(ROOT / "build" / "cython", to / "build" / "cython")
    for kernel in (ROOT / "build").glob("lib.*/**/*.so"):
        copied = to / kernel.relative_to(ROOT)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(kernel, copied)


def build_wheel(source: Path, to: Path, **variables: str) -> Path:
    """Build a wheel of a folder or of an sdist with the setuptools of the tests."""
    run(*PIP, "wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", to, source, cwd=None, **variables)
    (wheel,) = to.glob("*.whl")
    return wheel


def build_sdist(source: Path, to: Path) -> Path:
    """Build the sdist of a folder."""
    to.mkdir(parents=True)
    run(sys.executable, "-c", BUILD_SDIST, to, cwd=source, SKIP_CYTHON="1")
    (archive,) = to.glob("*.tar.gz")
    return archive


def required(requirements: Sequence[str], extras: Sequence[str]) -> Iterator[Requirement]:
    """Yield the requirements of a distribution with these extras that apply to this machine."""
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def closure(wheel: Path, extra: str | None) -> dict[str, Distribution]:
    """Return all distributions that a wheel needs, as installed for the tests."""
    with zipfile.ZipFile(wheel) as opened:
        (metadata,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        declared = Parser().parsestr(opened.read(metadata).decode()).get_all("Requires-Dist", [])
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = list(required(declared, [extra] if extra else []))
    while waiting:
        requirement = waiting.pop()
        if (requirement.name, str(sorted(requirement.extras))) in seen:
            continue
        seen.add((requirement.name, str(sorted(requirement.extras))))
        found[requirement.name] = distribution(requirement.name)
        waiting += required(found[requirement.name].requires or [], sorted(requirement.extras))
    return found


@dataclass(frozen=True)
class Installed:
    """A virtual environment without pip."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def program(self) -> tuple[str]:
        """The command `cdcctl` that pip created."""
        return (str(self.folder / "bin" / "cdcctl"),)

    def evaluate(self, expression: str, cwd: Path) -> str:
        """Return the value of an expression in its Python, as text."""
        imports = "import importlib.util, sys, tidemark.wal.kernel"
        return run(self.python, "-c", f"{imports}; print({expression})", cwd=cwd).strip()

    def install(self, wheel: Path, extra: str | None = None) -> None:
        """Install a wheel and its requirements."""
        if not FROM_INDEX:
            self._link(closure(wheel, extra))
        index = () if FROM_INDEX else ("--no-index",)
        what = f"{wheel}[{extra}]" if extra else str(wheel)
        run(*PIP, "--python", self.python, "install", "--no-compile", *index, what)

    def _link(self, distributions: dict[str, Distribution]) -> None:
        site = Path(run(self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        for one in distributions.values():
            for file in one.files or ():
                to = site / file
                if ".." in file.parts or to.exists():  # its scripts, which name their Python
                    continue
                to.parent.mkdir(parents=True, exist_ok=True)
                _link_or_copy(Path(str(one.locate_file(file))), to)


def _link_or_copy(source: Path, to: Path) -> None:
    try:
        os.link(source, to)
    except FileNotFoundError:  # bytecode that pip listed but did not write
        return
    except OSError:  # another file system
        shutil.copy2(source, to)


def environment_in(folder: Path) -> Installed:
    """Create an empty virtual environment."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    return Installed(folder)
