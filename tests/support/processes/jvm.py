"""The options of the tests' JVMs, with an archive of the classes that Spark loads if `class_archive` has created it.

A JVM checks whether the archive fits its version and its jars, and otherwise loads the jars themselves.
"""

import os
from pathlib import Path

from tidemark.pipeline.driver.class_archive import archive_options
from tidemark.pipeline.driver.java import java_home

BUILD = Path(__file__).parents[3] / "build"
# A JVM of the tests lives for seconds: with its default options it spends most of its CPU time on compiling well.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def jvm_options() -> str:
    """Return the options of the tests' JVMs."""
    return f"{JVM_OPTIONS} {archive_options(BUILD, java_home(os.environ, BUILD))}".rstrip()
