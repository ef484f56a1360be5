"""`python -m sidecar`, an earlier name of `python -m tidemark_sidecar`; version 0.2 removes it."""

import sys

from tidemark_sidecar.__main__ import main

if __name__ == "__main__":
    print("python -m sidecar is deprecated: use python -m tidemark_sidecar", file=sys.stderr)
    main()
