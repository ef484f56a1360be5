"""Which tables a promoted follower copies, by the lake of the capture that delivered before."""

from tidemark.model.lsn import Oid
from tidemark.runtime.recovery.promotion import promoted_copies
from tidemark.runtime.recovery.rebuild import LakeInventory
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress

TABLE = (Oid(1), Oid(2))
LAKE = LakeInventory(generations={TABLE: 3}, unfinished={})


def test_a_refused_copy_is_repeated_even_if_the_lake_has_an_earlier_generation() -> None:
    refused = CopyProgress(CopyPhase.REFUSED, 1, refused_name="shop.public.item")
    after = promoted_copies({TABLE: refused}, LAKE)
    assert {key: (copy.phase, copy.generation) for key, copy in after.items()} == {TABLE: (CopyPhase.WAITING, 3)}
    after = promoted_copies({TABLE: refused}, LakeInventory(unfinished={TABLE: 2}))
    assert {key: (copy.phase, copy.generation) for key, copy in after.items()} == {TABLE: (CopyPhase.WAITING, 2)}


def test_a_table_that_has_left_the_selection_stays_excluded() -> None:
    left = CopyProgress(CopyPhase.LEFT, 1)
    assert promoted_copies({TABLE: left}, LAKE) == {TABLE: left}


def test_a_generation_never_moves_back_to_that_of_a_lake_with_earlier_copies() -> None:
    after = promoted_copies({TABLE: CopyProgress(CopyPhase.DONE, 5)}, LAKE)
    assert after == {TABLE: CopyProgress(CopyPhase.DONE, 5)}
