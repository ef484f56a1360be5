"""Is this the same state folder as before? Evidence that survives a reboot, a remount and another pod (I21).

    same                       | survives                                             | a copy has it
    ---------------------------+------------------------------------------------------+------------------------------
    inode and ctime of a file   | reboot, remount anywhere, rename, another host       | no: a copy is another file
    path and inode              | the same, and a change of owner or mode (fsGroup)    | by chance, on another volume
    path and machine            | restore from a backup to the same path               | no: a path has one folder

One match is sufficient. Host names and device numbers are no evidence: a pod gets another name, a device another
number. None of these distinguishes a clone of a whole volume from the original: there the markers decide
(`tidemark.engine.incarnations`).
"""

from tidemark.model.incarnation import FolderIdentity


def is_same_folder(recorded: FolderIdentity, here: FolderIdentity) -> bool:
    """Return whether the state last used at `recorded` is the one at `here`, and not a copy of it."""
    if recorded.inode == here.inode and (recorded.ctime_ns == here.ctime_ns or recorded.path == here.path):
        return True
    return recorded.path == here.path and bool(here.machine) and recorded.machine == here.machine
