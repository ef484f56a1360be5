"""`python -m archiver`, an earlier name of `python -m tidemark_archiver`; version 0.2 removes it."""

import sys

from tidemark_archiver.__main__ import main

if __name__ == "__main__":
    print("python -m archiver is deprecated: use python -m tidemark_archiver", file=sys.stderr)
    main()
