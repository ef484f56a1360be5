"""Records on catalogs wait in the kernel, but a restart never misses one of them."""

import pytest

from tests.support.forged.forged_records import block_of, packed_row
from tests.support.forged.forged_sessions import ACCOUNT, LEDGER, new_wal
from tests.support.forged.groups import relation
from tidemark.decode.transactions.reorder_buffer.committed_run import singly
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction
from tidemark.model.lsn import INVALID_XID, Lsn, Xid

OLDER = 800  # with `is_partial`, a restart does not read its records again


@pytest.mark.parametrize("is_partial", [False, True])
def test_the_journal_has_all_changes_of_catalogs_before_the_restart_lsn_of_a_commit(*, is_partial: bool) -> None:
    stream = new_wal()
    decoder = new_wal(stream).decoder
    for each in (stream.decoder, decoder) if is_partial else ():
        each.transactions.enter_partial(Xid(OLDER), INVALID_XID, Lsn(stream.lsn))
    stream.insert(801, ACCOUNT, packed_row(1))
    stream.commit(801)
    changes = [stream.change_catalog(802, LEDGER, relation("renamed", LEDGER))]
    stream.abort(802)
    changes += [stream.change_catalog(OLDER, LEDGER, relation(name, LEDGER)) for name in ("first", "second")]
    stream.insert(803, ACCOUNT, packed_row(2))
    stream.commit(803)
    journal: list[Lsn] = []
    commits = []
    for decoded in singly(decoder.decode_runs(block_of(stream.raws), lambda record: journal.append(record.lsn))):
        assert isinstance(decoded, CommittedTransaction)
        commits.append(decoded.end.xid)
        assert {lsn for lsn in changes if lsn < decoded.restart_lsn} <= set(journal)
    assert commits == [801, 803]
    assert set(changes) <= set(journal)
