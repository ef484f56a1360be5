"""Memory of a JVM as the JVM reports it over HotSpot's attach socket, without `jcmd` and without another JVM.

The protocol is that of `jcmd` (hotspot/os/posix/attachListener_posix.cpp): a file in the JVM's folder and SIGQUIT make
it listen on a socket; a request is NUL-terminated strings, the answer is a result code, a newline and text.
"""

import os
import re
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path

NATIVE_MEMORY_TRACKING = "-XX:NativeMemoryTracking=summary"
ATTACH_S = 10.0
ANSWER_S = 30.0
POLL_S = 0.02
ANSWER_BYTES_MAX = 1 << 20
MIB_KIB = 1024
_HEAP = re.compile(r"heap\s+total (\d+)K, used (\d+)K")
_METASPACE = re.compile(r"Metaspace\s+used (\d+)K, committed (\d+)K")
_NATIVE = re.compile(r"^-?\s*([A-Z][A-Za-z ]*?)\s+\(reserved=\d+KB, committed=(\d+)KB\)|^(Total): .*committed=(\d+)KB")
COLUMNS = ("heap_used_mb", "heap_committed_mb", "metaspace_mb", "native_mb", "threads_mb", "code_mb", "gc_mb")


def memory(pid: int) -> dict[str, float]:
    """Return the JVM's report of its heap and other memory; empty if it does not answer."""
    try:
        return parse(_jcmd(pid, "GC.heap_info"), _jcmd(pid, "VM.native_memory summary"))
    except OSError:
        return {}


def parse(heap_info: str, native_memory: str) -> dict[str, float]:
    """Return the numbers of both answers, by column; without native memory tracking only those of the first."""
    heap, metaspace = _HEAP.search(heap_info), _METASPACE.search(heap_info)
    if heap is None or metaspace is None:
        return {}
    reported = {
        "heap_used_mb": int(heap[2]) / MIB_KIB,
        "heap_committed_mb": int(heap[1]) / MIB_KIB,
        "metaspace_mb": int(metaspace[2]) / MIB_KIB,
    }
    native = _native(native_memory)
    if "Total" in native:
        outside = native["Total"] - native.get("Java Heap", 0.0)
        reported |= {"native_mb": outside, "threads_mb": native.get("Thread", 0.0)}
        reported |= {"code_mb": native.get("Code", 0.0), "gc_mb": native.get("GC", 0.0)}
    return reported


def _native(text: str) -> Mapping[str, float]:
    """Return MB committed by category; empty without native memory tracking."""
    found = (_NATIVE.match(line) for line in text.splitlines())
    return {each[1] or each[3]: int(each[2] or each[4]) / MIB_KIB for each in found if each is not None}


def _jcmd(pid: int, command: str) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(ANSWER_S)
        asking.connect(str(_listening(pid)))
        asking.sendall(b"\0".join((b"1", b"jcmd", command.encode(), b"", b"", b"")))
        answer = b""
        while len(answer) < ANSWER_BYTES_MAX and (part := asking.recv(1 << 16)):
            answer += part
    return answer.decode(errors="replace")


def _listening(pid: int) -> Path:
    """Return the JVM's socket; request it if there is none."""
    place = Path(f"/tmp/.java_pid{pid}")  # fixed by HotSpot, independent of TMPDIR
    if place.exists():
        return place
    request = Path(f"/proc/{pid}/cwd/.attach_pid{pid}")
    request.touch(mode=0o600)
    try:
        os.kill(pid, signal.SIGQUIT)
        end_s = time.monotonic() + ATTACH_S
        while not place.exists():
            if time.monotonic() > end_s:
                raise TimeoutError(f"the JVM {pid} does not listen")
            time.sleep(POLL_S)
    finally:
        request.unlink(missing_ok=True)
    return place
