"""`python -m tidemark_ctl` is `cdcctl`."""

from tidemark_ctl.main import main

main()
