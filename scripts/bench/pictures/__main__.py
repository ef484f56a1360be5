"""Draws the pictures of docs/performance.md from the benchmarks' --json output.

    .venv/bin/python -m scripts.bench.pictures [--decode FILE] [--latency FILE] [--growth FILE]
        [--overhead FILE] [--into docs/pictures]

Bars are medians of a run's trials; the line over a bar goes from the minimum to the maximum.
"""

import argparse
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.bench.pictures.drawing import number, text_at
from scripts.bench.server_load.companions import COMPANIONS
from scripts.bench.server_load.overhead_bench import CompanionRun, ratios

INTO = Path(__file__).resolve().parents[3] / "docs" / "pictures"
WIDTH, LEFT, RIGHT, ROW, GAP, TOP, BOTTOM = 760, 190, 80, 20, 14, 54, 34
COLOURS = {"tidemark": "#1f6fb2", "pgoutput": "#c2571a", "test_decoding": "#8a8f98", "other": "#b9bec6"}
TICKS_MAX = 9
DENSE_MAX = 1e4  # ratio of maximum to minimum above which the labels of a logarithmic scale would overlap
Said = Mapping[str, Any]  # JSON output of a benchmark


@dataclass(frozen=True, slots=True)
class Bar:
    """A name and its measured values."""

    name: str
    values: Sequence[float]

    @property
    def colour(self) -> str:
        """The colour for the bar's owner."""
        found = next((kind for kind in ("tidemark", "pgoutput", "test_decoding") if kind in self.name), "other")
        return COLOURS["pgoutput" if self.name == "pg_recvlogical" else found]


@dataclass(frozen=True, slots=True)
class Picture:
    """Groups of bars on one scale."""

    title: str
    unit: str
    groups: Sequence[tuple[str, Sequence[Bar]]]
    logarithmic: bool = False

    def svg(self) -> str:
        """Return the picture as SVG."""
        scale = _Scale(
            [value for _, bars in self.groups for bar in bars for value in bar.values], logarithmic=self.logarithmic
        )
        drawn: list[str] = []
        at = TOP
        for heading, bars in self.groups:
            drawn.append(text_at(10, at + 14, heading, weight="bold"))
            at += ROW
            for bar in bars:
                drawn += _bar(bar, at, scale)
                at += ROW
            at += GAP
        height = at + BOTTOM
        ticks = [part for tick in scale.ticks() for part in _tick(tick, scale.at(tick), at)]
        head = [text_at(10, 22, self.title, size=15, weight="bold"), text_at(10, 40, self.unit, colour="#555")]
        opening = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">'
        )
        ground = f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>'
        return "\n".join((opening, ground, *head, *ticks, *drawn, "</svg>")) + "\n"


class _Scale:
    def __init__(self, values: Sequence[float], *, logarithmic: bool) -> None:
        least, most = min(values), max(values)
        self._logarithmic = logarithmic
        self._least = 10 ** math.floor(math.log10(max(least, most / 1e4))) if logarithmic else 0.0
        self._most = most * (1.3 if logarithmic else 1.0)

    def at(self, value: float) -> float:
        """Return the position of a value."""
        if self._logarithmic:
            share = math.log(max(value, self._least) / self._least) / math.log(self._most / self._least)
        else:
            share = value / self._most
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def ticks(self) -> list[float]:
        """Return round numbers within the scale."""
        if self._logarithmic:
            digits: tuple[int, ...] = (1, 2, 5) if self._most / self._least <= DENSE_MAX else (1,)
            found = [10.0**power * digit for power in range(-4, 5) for digit in digits]
        else:
            step = 10 ** math.floor(math.log10(self._most))
            step = next(step / part for part in (1, 2, 5, 10) if self._most / (step / part) >= 3)
            found = [number * step for number in range(TICKS_MAX)]
        return [tick for tick in found if self._least <= tick <= self._most]


def _bar(bar: Bar, at: float, scale: _Scale) -> list[str]:
    middle, begin = statistics.median(bar.values), scale.at(0)
    end, low, high = scale.at(middle), scale.at(min(bar.values)), scale.at(max(bar.values))
    line, width, height = at + ROW / 2 - 1, max(end - begin, 1), ROW - 6
    return [
        text_at(LEFT - 8, at + 13, bar.name, anchor="end"),
        f'<rect x="{begin:.1f}" y="{at + 2}" width="{width:.1f}" height="{height}" fill="{bar.colour}"/>',
        f'<line x1="{low:.1f}" y1="{line}" x2="{high:.1f}" y2="{line}" stroke="#222" stroke-width="1"/>',
        text_at(max(end, high) + 6, at + 13, number(middle)),
    ]


def _tick(value: float, x: float, bottom: float) -> list[str]:
    return [
        f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>',
        text_at(x, bottom + 16, number(value), anchor="middle", colour="#555"),
    ]


def latency(said: Said) -> Picture:
    """Return p50 and p99 of each reader at each rate."""
    trials = said["measured"]
    groups = []
    for rate in dict.fromkeys(trial["rate"] for trial in trials):
        for quantile in ("p50", "p99"):
            bars = [
                Bar(reader, [trial[quantile] for trial in trials if (trial["rate"], trial["reader"]) == (rate, reader)])
                for reader in dict.fromkeys(trial["reader"] for trial in trials)
            ]
            groups.append((f"{rate:,} commits/s, {quantile}", bars))
    unit = f"milliseconds after the commit's return, logarithmic; {_about(said)}"
    return Picture("From commit to consumer", unit, groups, logarithmic=True)


def throughput(said: Said) -> Picture:
    """Return rows a CPU second of each contestant on each workload."""
    groups = []
    for workload in said["workloads"]:
        rows = workload["rows"]
        bars = [
            Bar(name, [rows / seconds for seconds in measured["cpu_s"]])
            for name, measured in workload["contestants"].items()
            if "waldump" not in name and "nothing selected" not in name
        ]
        groups.append((f"{workload['what']}: {rows:,} rows", bars))
    return Picture("Decoding", f"rows a CPU second; {_about(said)}", groups)


def time_by_wal(said: Said) -> Picture:
    """Return CPU seconds by WAL."""
    groups = [("one process from its start, WAL of", _named(said, "WAL", "cpu_s"))]
    return Picture("Time by WAL", f"CPU seconds; {_about(said)}", groups)


def memory(said: Said) -> Picture:
    """Return peak memory by rows and by tables."""
    groups = [("one transaction of", _named(said, "rows", "peak_mb"))]
    groups += [("a row each, in turn, into", _named(said, "tables", "peak_mb"))]
    groups += [("the start alone, with", _named(said, "tables", "start_peak_mb"))]
    return Picture("Memory by transaction and by catalog", f"MB at the peak; {_about(said)}", groups)


def overhead_tps(said: Said) -> Picture:
    """Return the load's transactions a second beside each reader, relative to none."""
    runs = _companion_runs(said)
    bars = [Bar(name, ratios(runs, name, "tps")) for name in dict.fromkeys(run.companion for run in runs)]
    what = f"{said['clients']} clients, {said['rate']} a second"
    return Picture("The load beside a reader", f"transactions a second, by none; {_about(said)}", [(what, bars)])


def overhead_cpu(said: Said) -> Picture:
    """Return the CPU of a transaction beside each reader: on its own host, and on that of the node."""
    runs = _companion_runs(said)
    names = list(dict.fromkeys(run.companion for run in runs))

    def bars(cost: Callable[[CompanionRun], float]) -> list[Bar]:
        return [Bar(name, [cost(run) for run in runs if run.companion == name]) for name in names]

    groups = [
        ("reader on another host: the server alone", bars(lambda run: run.server_cpu_us)),
        ("reader on the node's host: server and reader", bars(lambda run: run.server_cpu_us + run.reader_cpu_us)),
    ]
    return Picture("CPU of a transaction beside a reader", f"microseconds; {_about(said)}", groups)


def _companion_runs(said: Said) -> list[CompanionRun]:
    runs = [CompanionRun(**trial) for trial in said["trials"]]
    return sorted(runs, key=lambda run: list(COMPANIONS).index(run.companion))


def _named(said: Said, kind: str, what: str) -> list[Bar]:
    trials = said["measured"].get(kind, ())
    names = dict.fromkeys(trial["name"] for trial in trials)
    return [Bar(f"tidemark, {name}", [trial[what] for trial in trials if trial["name"] == name]) for name in names]


def _about(said: Said) -> str:
    return f"{said['cpus']} CPUs, load {said['load'][0]} before"


DRAWN: Mapping[str, Mapping[str, Callable[[Said], Picture]]] = {
    "decode": {"throughput": throughput},
    "latency": {"latency": latency},
    "overhead": {"overhead-tps": overhead_tps, "overhead-cpu": overhead_cpu},
    "growth": {"time": time_by_wal, "memory": memory},
}


def main() -> None:
    """Draw the pictures for the given files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in DRAWN:
        parser.add_argument(f"--{name}", type=Path, help=f"JSON of scripts/bench/{name}")
    parser.add_argument("--into", type=Path, default=INTO)
    given = parser.parse_args()
    given.into.mkdir(exist_ok=True)
    for name, pictures in DRAWN.items():
        path: Path | None = getattr(given, name)
        if path is None:
            continue
        said = json.loads(path.read_text(encoding="utf-8"))
        for file, draw in pictures.items():
            (given.into / f"{file}.svg").write_text(draw(said).svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
