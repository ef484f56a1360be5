"""Creates the archive of the classes that Spark loads, as `cdcctl spark prepare` does for a state.

python -m tests.support.processes.class_archive  # does nothing if the archive exists
"""

import os
import sys

from tests.support.processes.jvm import BUILD
from tidemark.io.state.process_folder import ProcessFolder
from tidemark.model.errors import TidemarkError
from tidemark.pipeline.driver.class_archive import find_archive
from tidemark.pipeline.driver.java import java_home
from tidemark.pipeline.driver.preparation import prepare


def main() -> int:
    """Create the archive if it does not exist; without it the tests run as well, but longer."""
    BUILD.mkdir(exist_ok=True)
    if find_archive(BUILD, java_home(os.environ, BUILD)) is None:
        try:
            archive = prepare(ProcessFolder(BUILD))
        except (TidemarkError, OSError) as error:
            sys.stderr.write(f"no archive of Java's classes: {error}\n")
        else:
            archive.chmod(0o644)  # tests run pipelines as another user
            archive.parent.chmod(0o755)
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main())
