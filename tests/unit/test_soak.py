"""The samples and drawings of the soak: the script runs for hours, so its parts are tested here."""

import csv
import os
from pathlib import Path

from scripts.bench.pictures.curves import POINTS_MAX, thinned
from scripts.soak_run import jvm
from scripts.soak_run.__main__ import COLUMNS
from scripts.soak_run.picture import PANELS, draw
from scripts.soak_run.sampling import family, files, used

HEAP_INFO = """\
 garbage-first heap   total 157696K, used 120320K [0x00000000c0000000, 0x0000000100000000)
  region size 1024K, 67 young (68608K), 9 survivors (9216K)
 Metaspace       used 133939K, committed 134784K, reserved 1179648K
  class space    used 17116K, committed 17536K, reserved 1048576K
"""
NATIVE_MEMORY = """\
Native Memory Tracking:

(Omitting categories weighting less than 1KB)

Total: reserved=2963183KB, committed=436287KB
       malloc: 63347KB #399013
       mmap:   reserved=2899836KB, committed=372940KB

-                 Java Heap (reserved=1048576KB, committed=157696KB)
                            (mmap: reserved=1048576KB, committed=157696KB)

-                    Thread (reserved=90336KB, committed=8640KB)
                            (thread #88)
-                      Code (reserved=254222KB, committed=45710KB)
-                        GC (reserved=92018KB, committed=61018KB)
"""


def test_a_jvms_account_of_its_memory_is_split_into_heap_and_the_rest() -> None:
    reported = jvm.parse(HEAP_INFO, NATIVE_MEMORY)
    assert tuple(reported) == jvm.COLUMNS
    assert [round(value, 1) for value in reported.values()] == [117.5, 154.0, 131.6, 272.1, 8.4, 44.6, 59.6]


def test_the_heap_of_a_jvm_without_native_memory_tracking_is_measured() -> None:
    assert tuple(jvm.parse(HEAP_INFO, "Native memory tracking is not enabled")) == jvm.COLUMNS[:3]


def test_an_ended_process_uses_nothing_and_a_running_one_something() -> None:
    ours = used([os.getpid()])
    assert ours.processes == 1
    assert min(ours.rss_mb, ours.anonymous_mb, ours.descriptors, ours.threads, ours.cpu_s) > 0
    assert used([os.getpid(), 0]).processes == 1  # process 0 is not in /proc
    assert os.getpid() in family(os.getpid()).own


def test_files_are_counted_at_every_depth(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_bytes(bytes(1 << 20))
    (tmp_path / "d").write_text("x")
    count, size_mb = files(tmp_path)
    assert count == 2
    assert 1.0 <= size_mb < 1.1


def test_thinned_curves_keep_every_peak() -> None:
    points = [(float(at), 100.0 if at == 777 else 1.0) for at in range(5000)]
    kept = thinned(points)
    assert len(kept) <= POINTS_MAX
    assert (777.0, 100.0) in kept


def test_every_panel_is_drawn_from_the_columns_of_the_csv(tmp_path: Path) -> None:
    source, picture = tmp_path / "soak.csv", tmp_path / "soak.svg"
    with source.open("w", newline="") as out:
        writer = csv.DictWriter(out, COLUMNS)
        writer.writeheader()
        writer.writerows({column: str(at) for column in COLUMNS} for at in (60, 120))
    draw(source, picture)
    drawn = picture.read_text()
    assert all(title in drawn for title in PANELS)
    assert drawn.count("<polyline") == sum(map(len, PANELS.values()))
