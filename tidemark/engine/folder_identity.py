"""Is a state folder where it was? Evidence that survives a reboot, a remount and another pod on the same volume (I21).

    same                       | survives                                             | a copy has it
    ---------------------------+------------------------------------------------------+------------------------------
    inode and ctime of a file   | reboot, remount anywhere, rename, another host       | no: a copy is another file
    path and inode              | the same with its owner or mode set anew (fsGroup)   | by chance, on another volume
    path and machine            | restored from a backup in its place                  | no: a path has one folder

Any one of these suffices to go on. Host names and device numbers are no evidence: a pod gets another name, a device
another number. A clone of a whole volume cannot be told from it by any of these: there the markers decide
(`tidemark.engine.incarnations`).
"""

from tidemark.model.incarnation import StatePlace


def is_same_folder(recorded: StatePlace, here: StatePlace) -> bool:
    """Tell if the state that was used at `recorded` is the one that is found at `here`, and no copy of it."""
    if recorded.inode == here.inode and (recorded.ctime_ns == here.ctime_ns or recorded.path == here.path):
        return True
    return recorded.path == here.path and bool(here.machine) and recorded.machine == here.machine
