"""An archive of the classes that Spark's JVM loads (class data sharing): with it, the JVM starts in half the CPU time.

`cdcctl spark prepare` creates it, because that takes half a minute of CPU and 850 MB of memory: a running pipeline may
have neither to spare. A folder has one archive, for one Java and one Spark. It is replaced by a rename, so the JVMs of
running pipelines keep the one that they have mapped. A JVM ignores an archive that does not fit its version, its jars
or its class path, and one that it may not read.
"""

import hashlib
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from tidemark.io.host.disk import StateFull, sync
from tidemark.io.state.process_folder import ProcessFolder
from tidemark.model.errors import StateError

FOLDER = "java-classes"
SPACE_MIN_BYTES = 1 << 30  # free on the disk before an archive is created: it has 160 MB, and its list of classes 1 MB
CREATE_S_MAX = 600
HEAP = "-Xmx256m"
COMPILERS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"  # about an archive that does not fit
_PLAIN = re.compile(r"[\w/.+@=~-]+")  # paths that are one word of Spark's options and of Java's


class ClassesNotArchived(StateError):
    """Java could not create the archive."""

    hint = "the pipeline runs without it; a folder in Spark's class path (SPARK_CONF_DIR) must be empty or missing"


def find_archive(root: Path, java_home: Path) -> Path | None:
    """Return the archive of this Java and the installed Spark.

    Its size is in its name: a JVM crashes on an archive that was truncated, for example by an incomplete copy.
    """
    found = (root.absolute() / FOLDER).glob(f"{_identity(java_home)}-*.jsa")
    return next((archive for archive in found if archive.stem.endswith(f"-{_bytes_of(archive)}")), None)


def archive_options(root: Path, java_home: Path) -> str:
    """Return the options of a JVM that maps the archive; none if it does not exist."""
    archive = find_archive(root, java_home)
    if archive is None or not _PLAIN.fullmatch(str(archive)):
        return ""
    return f"{_QUIET} -XX:SharedArchiveFile={archive}"


def _bytes_of(archive: Path) -> int | None:
    try:
        return archive.stat().st_size
    except FileNotFoundError:  # another process has replaced it
        return None


def _identity(java_home: Path) -> str:
    spark = find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    parts = ((java_home / "bin" / "java").resolve(), Path(spark.origin).resolve().parent / "jars")
    identity = " ".join(f"{part} {part.stat().st_mtime_ns}" for part in parts)
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def create_archive(folder: ProcessFolder, java_home: Path, classes: Path, class_path: str) -> Path:
    """Create the archive of a list of classes, and remove those of other versions. One process may do this at once."""
    archives = folder.root.absolute() / FOLDER
    archives.mkdir(mode=folder.folder_mode, exist_ok=True)
    if shutil.disk_usage(archives).free < SPACE_MIN_BYTES:
        raise StateFull(f"less than 1 GB is free under {archives}", hint="free space there and repeat the command")
    with TemporaryDirectory(prefix="unfinished-", dir=archives) as unfinished:
        written = Path(unfinished) / "classes.jsa"
        options = (f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={written}", "-cp", class_path)
        command = [str(java_home / "bin" / "java"), "-Xshare:dump", HEAP, *COMPILERS.split(), *options]
        try:
            process = subprocess.run(command, capture_output=True, text=True, timeout=CREATE_S_MAX, check=False)
        except subprocess.TimeoutExpired as error:
            raise ClassesNotArchived(f"Java did not create an archive in {CREATE_S_MAX} s") from error
        if process.returncode or not written.exists():
            raise ClassesNotArchived(
                f"Java could not create an archive of Spark's classes: {process.stderr.strip()[-500:]}"
            )
        written.chmod(folder.file_mode)
        sync(written)  # a JVM may crash on an archive that a loss of power has left incomplete
        archive = archives / f"{_identity(java_home)}-{written.stat().st_size}.jsa"
        written.rename(archive)
        sync(archives)
    _remove_others(archive)
    return archive


def _remove_others(archive: Path) -> None:
    """Remove the archives of other versions, and what an interrupted run has left."""
    for other in archive.parent.iterdir():
        if other.is_dir():
            shutil.rmtree(other)
        elif other != archive:
            other.unlink()
