"""`python -m archiver.archive_command`, an earlier name of `cdcctl-archive`; version 0.2 removes it.

It prints no warning: the server's log would have one for each segment.
"""

from tidemark_archiver.archive_command import main

if __name__ == "__main__":
    main()
