"""`python -m tidemark.pipeline.lake.compare`: if the packages of the extra `spark` are missing, it names the extra.

NB: nothing here may import a package of the extra; `tidemark.pipeline.lake.comparison` is imported after the check.
"""

import sys
from importlib import import_module

from tidemark.io.host.extras import SPARK, MissingExtra


def main() -> int:
    """Compare and print; return 0 if everything is identical."""
    try:
        SPARK.require()
    except MissingExtra as error:
        print(f"compare: {error}\n  hint: {error.hint}", file=sys.stderr)  # noqa: T201 - a program's own output
        return error.exit_code
    return int(import_module("tidemark.pipeline.lake.comparison").main())


if __name__ == "__main__":
    sys.exit(main())
