"""What later collections of garbage leave out, in separate processes: a frozen process stays so."""

import subprocess
import sys

PROGRAM = """
import gc, weakref
from tidemark.io.host.loaded_objects import skipping_loaded_objects

class Node:
    pass

def task():
    with skipping_loaded_objects():
        node = Node()
        node.itself = node  # garbage that only a collection finds
        found = weakref.ref(node)
        del node
        yield found

found = next(tasks := task())
before = gc.get_freeze_count()
tasks.close()
print(before, found() is None, gc.get_freeze_count(), len(gc.get_objects()))
frozen = gc.get_freeze_count()
list(task())
print(gc.get_freeze_count() == frozen)
"""


def test_the_first_task_of_a_process_leaves_all_loaded_objects_out_but_not_its_garbage() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    first, second = done.stdout.splitlines()
    before, is_collected, frozen, visited = first.split()
    assert (before, is_collected) == ("0", "True")
    assert int(frozen) > 1000 > int(visited)
    assert second == "True"
