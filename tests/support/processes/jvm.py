"""The options of the tests' JVMs, with an archive of the classes that Spark loads if `class_archive` has created it.

A JVM checks whether the archive fits its version and its jars, and otherwise loads the jars themselves.
"""

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path

from tidemark.pipeline.driver.java import java_home

BUILD = Path(__file__).parents[3] / "build"
# A JVM of the tests lives for seconds: with its default options it spends most of its CPU time on compiling well.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"  # about an archive that does not fit


def archive_path() -> Path:
    """Return the path of the archive of the installed Java and Spark."""
    java = (java_home(os.environ, BUILD) / "bin" / "java").resolve()
    spark = find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    parts = (java, Path(spark.origin).resolve().parent / "jars")
    identity = " ".join(f"{part} {part.stat().st_mtime_ns}" for part in parts)
    return BUILD / f"classes-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.jsa"


def jvm_options() -> str:
    """Return the options of the tests' JVMs."""
    archive = archive_path()
    return f"{JVM_OPTIONS} {QUIET} -XX:SharedArchiveFile={archive}" if archive.exists() else JVM_OPTIONS
