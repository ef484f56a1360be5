"""The error for a node whose timeline left the one that was decoded; every reader of a node's stream may raise it."""

from tidemark.model.errors import CorruptWal
from tidemark.model.lsn import Lsn


class WalDiverged(CorruptWal):
    """The node left its timeline before WAL that we have: what we have never happened there.

    `fork_lsn`: where that was, if what stands behind it was received, and may never have been decoded: a server that is
    lost may have sent the beginning of a record. None: it was delivered.
    """

    fork_lsn: Lsn | None = None
    hint = (
        "stop both daemons and run `cdcctl rewind`: it marks the delivered changes of the dead branch and corrects "
        "the tables"
    )
