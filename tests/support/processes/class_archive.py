"""Creates the archive of the classes that Spark loads, by `cdcctl spark prepare` for the folder `build`.

python -m tests.support.processes.class_archive  # does nothing if the archive exists
"""

import os
import subprocess
import sys

from tests.support.processes.jvm import BUILD
from tidemark.pipeline.driver.class_archive import FOLDER


def main() -> int:
    """Create the archive if it does not exist; without it the tests run as well, but longer."""
    BUILD.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tidemark_ctl", "spark", "prepare", "--state", str(BUILD), "--if-missing"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != os.EX_OK:
        sys.stderr.write(f"no archive of Java's classes: {done.stderr}\n")
        return os.EX_OK
    for path in (BUILD / FOLDER, *(BUILD / FOLDER).iterdir()):  # tests run pipelines as another user
        path.chmod(0o755)
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main())
