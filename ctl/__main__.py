"""`python -m ctl` is `cdcctl`."""

from ctl.main import main

main()
