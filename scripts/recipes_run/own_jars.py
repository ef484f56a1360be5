"""Removes the jars from a folder that PySpark contains, in another version: one of each must be on the class path."""

import re
import sys
from pathlib import Path

import pyspark

_VERSION = re.compile(r"-\d[\w.]*\.jar$")


def artifact(jar: Path) -> str:
    """Return the name of a jar without its version."""
    return _VERSION.sub("", jar.name)


def main() -> None:
    """Remove them from the folder that is named."""
    known = {artifact(jar) for jar in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    for jar in Path(sys.argv[1]).glob("*.jar"):
        if artifact(jar) in known:
            jar.unlink()


if __name__ == "__main__":
    main()
