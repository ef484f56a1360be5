"""Fuzzes the targets one after the other; `scripts/fuzz` starts it and explains the options."""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.support.forged.byte_targets.table import TARGETS, corpus, keep

LOOP = Path(__file__).with_name("fuzz_loop.py")
INPUT_S_MAX = 20  # an input that takes longer is a bug
MEMORY_MB_MAX = 1024  # a process that uses more has a bug: the targets with their imports use about 200
INPUT_BYTES_MAX = 40_000
KEPT_BYTES_MAX = 16_000  # limit of one target's corpus in the tree; named inputs are always kept


def main() -> int:
    """Fuzz, or replay; return the exit status."""
    options = arguments()
    if options.replay:
        name, path = options.replay
        TARGETS[name].run(Path(path).read_bytes())
        print(f"{name}: {path} is no failure")
        return 0
    names = options.target or list(TARGETS)
    failed = [name for name in names if not fuzz(name, max(1, options.seconds // len(names)), options)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def arguments() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", action="append", choices=list(TARGETS))
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--replay", nargs=2, metavar=("NAME", "FILE"))
    return parser.parse_args()


def fuzz(name: str, seconds: int, options: argparse.Namespace) -> bool:
    """Fuzz one target; return true if nothing failed."""
    with tempfile.TemporaryDirectory(prefix="tm-fuzz-") as folder:
        inputs, found = Path(folder) / "inputs", Path(folder) / "found"
        inputs.mkdir()
        found.mkdir()
        known = {**TARGETS[name].seeds, **corpus(name)}
        write(inputs, known.values())
        failures = Path(tempfile.gettempdir()) / f"tidemark-fuzz-{name}-"
        ended = loop(
            name,
            str(found),
            str(inputs),
            f"-max_total_time={seconds}",
            f"-seed={options.seed}",
            f"-artifact_prefix={failures}",
        )
        reported = [line for line in ended.stderr.splitlines() if line.startswith("stat::number_of_executed_units")]
        runs = reported[0].split()[-1] if reported else "?"
        print(f"{name}: {runs} inputs in {seconds} s, {len(list(found.iterdir()))} reach new code")
        if ended.returncode:
            print(ended.stdout[-6000:], file=sys.stderr)
            print("\n".join(line for line in ended.stderr.splitlines() if "unit written to" in line), file=sys.stderr)
            print(f"{name} failed; again by: scripts/fuzz --replay {name} FILE (named above)", file=sys.stderr)
            return False
        if options.keep:
            keep(name, chosen(name, found))
    return True


def loop(name: str, *libfuzzer: str) -> "subprocess.CompletedProcess[str]":
    """Run libFuzzer on a target."""
    bounds = [f"-timeout={INPUT_S_MAX}", f"-rss_limit_mb={MEMORY_MB_MAX}", f"-max_len={INPUT_BYTES_MAX}"]
    command = [sys.executable, str(LOOP), name, *libfuzzer, *bounds, "-print_final_stats=1"]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, env=os.environ)


def write(folder: Path, inputs: Iterable[bytes]) -> None:
    """Write inputs into a folder under libFuzzer's names."""
    for data in inputs:
        (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)


def chosen(name: str, found: Path) -> Mapping[str, bytes]:
    """Return the inputs to keep: those kept before, and the smallest new ones that reach more, up to the limit."""
    kept = dict(corpus(name))
    disk_space = KEPT_BYTES_MAX - sum(map(packed_bytes, kept.values()))
    for data in sorted((path.read_bytes() for path in found.iterdir()), key=packed_bytes):
        disk_space -= packed_bytes(data)
        if disk_space < 0:
            break
        kept[hashlib.sha1(data).hexdigest()[:12]] = data
    return kept


def packed_bytes(data: bytes) -> int:
    """Return the approximate size of an input in the tree."""
    return len(zlib.compress(data)) * 4 // 3


if __name__ == "__main__":
    sys.exit(main())
