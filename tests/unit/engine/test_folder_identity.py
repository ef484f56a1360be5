"""The identity of a state folder: the moves that it survives without an operator's confirmation, and the others."""

from dataclasses import replace

import pytest

from tidemark.engine.folder_identity import is_same_folder
from tidemark.model.incarnation import FolderIdentity

HERE = FolderIdentity(machine="a" * 32, path="/var/lib/tidemark/main", inode=1234, ctime_ns=1_700_000_000_000_000_001)

SAME = {
    "a restart, or a reboot": HERE,
    "a volume that is mounted elsewhere on another machine": replace(HERE, machine="b" * 32, path="/mnt/moved"),
    "a pod on another node, its volume's files chowned": replace(HERE, machine="b" * 32, ctime_ns=2),
    "a container without a machine-id, its volume's files chowned": replace(HERE, machine="", ctime_ns=2),
    "a backup restored in its place": replace(HERE, inode=5678, ctime_ns=2),
}
COPIES = {
    "a copy beside it": replace(HERE, path="/var/lib/tidemark/copy", inode=5678, ctime_ns=2),
    "a copy on another file system, with the same inode by chance": replace(HERE, path="/mnt/copy", ctime_ns=2),
    "a copy on another machine, in the same path": replace(HERE, machine="b" * 32, inode=5678, ctime_ns=2),
    "a copy in a container, in the same path": replace(HERE, machine="", inode=5678, ctime_ns=2),
}


@pytest.mark.feature("I21")
@pytest.mark.parametrize("here", SAME.values(), ids=SAME)
def test_a_state_continues_in_its_folder(here: FolderIdentity) -> None:
    assert is_same_folder(HERE, here)


@pytest.mark.feature("I21")
@pytest.mark.parametrize("here", COPIES.values(), ids=COPIES)
def test_a_copy_of_a_state_is_distinguished_from_it(here: FolderIdentity) -> None:
    assert not is_same_folder(HERE, here)


def test_two_machines_without_an_id_are_not_one() -> None:
    assert not is_same_folder(replace(HERE, machine=""), COPIES["a copy in a container, in the same path"])
