"""`python -m tidemark.pipeline`, started by `cdcctl spark run`: names the extra if its packages are missing.

NB: nothing here may import a package of the extra. The program itself is imported after the check.
"""

import sys
from importlib import import_module

from tidemark.io.host.extras import SPARK, MissingExtra
from tidemark.io.host.log_output import configure_logs, get_log
from tidemark.io.process.ending import report_ending


def main() -> int:
    """Run the pipeline; return its exit status."""
    try:
        SPARK.require()
    except MissingExtra as error:
        configure_logs("json", "info")
        return report_ending(get_log("pipeline"), "pipeline ends", error)
    return int(import_module("tidemark.pipeline.driver.program").main())


if __name__ == "__main__":
    sys.exit(main())
