"""The error for a node whose timeline left the one that was decoded; every reader of a node's stream may raise it."""

from tidemark.model.errors import CorruptWal
from tidemark.model.lsn import Lsn


class DeadBranchDelivered(CorruptWal):
    """The node left its timeline before WAL that we have: it does not have these changes.

    `fork_lsn`: the fork, if WAL behind it was received and possibly never decoded: a lost server may have sent the
    beginning of a record. None: it was delivered.
    """

    fork_lsn: Lsn | None = None
    hint = (
        "stop both daemons and run `cdcctl rewind`: it marks the delivered changes of the dead branch and corrects "
        "the tables"
    )
