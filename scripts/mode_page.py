"""Writes the stage table into ARCHITECTURE.md from tidemark.engine.handover; --check only checks that it is current."""

import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tidemark.engine.handover import NEXT, Event  # noqa: E402 - found by the line above
from tidemark.model.mode import Stage  # noqa: E402

PAGE = ROOT / "ARCHITECTURE.md"
BEGIN = "<!-- modes: written by scripts/mode_page.py from the table; do not edit -->\n"
END = "<!-- end of modes -->\n"


def diagram() -> str:
    """Return the drawing: an arrow for each pair of stages, with all events that cause it."""
    arrows: dict[tuple[Stage, Stage], list[Event]] = defaultdict(list)
    for (stage, event), move in NEXT.items():
        if stage is not move.stage:
            arrows[stage, move.stage].append(event)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {Stage.REALTIME.name}"]
    for (stage, after), events in sorted(arrows.items(), key=lambda arrow: (arrow[0][0].number, arrow[0][1].number)):
        lines.append(f"    {stage.name} --> {after.name}: {', '.join(event.name for event in events)}")
    return "\n".join([*lines, "```", ""])


def table() -> str:
    """Return the table of events in each stage, with the effects of the transition."""
    lines = ["| in | on | goes to | then |", "|---|---|---|---|"]
    for (stage, event), move in sorted(NEXT.items(), key=lambda row: (row[0][0].number, list(Event).index(row[0][1]))):
        effects = ", ".join(effect.value for effect in move.effects)
        lines.append(f"| {stage.name} | {event.value} | {move.stage.name} | {effects} |")
    return "\n".join([*lines, ""])


def stages() -> str:
    """Return the stages, with their exported number and deliverer."""
    lines = ["| stage | `tidemark_mode` | mode | who delivers |", "|---|---|---|---|"]
    for stage in Stage:
        who = stage.deliverer.value if stage.deliverer is not None else "nobody"
        lines.append(f"| {stage.name} | {stage.number} | {stage.mode.value} | {who} |")
    return "\n".join([*lines, ""])


def main() -> int:
    """Write the page, or compare it."""
    page = PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    written = "\n".join([head + BEGIN, diagram(), stages(), table(), END]).rstrip("\n") + "\n" + tail
    if "--check" in sys.argv[1:]:
        return int(written != page)
    PAGE.write_text(written, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
