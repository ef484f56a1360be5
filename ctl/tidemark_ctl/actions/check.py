"""`cdcctl check`: tests the whole path from the node to the readers, and reports the leg that is broken (I44)."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import click

from tidemark.model.errors import TidemarkError
from tidemark_ctl.opened_capture import opened_capture
from tidemark_ctl.requests.end_to_end import EndToEndCheck, Leg, LegEnd, LegName, legs_tree
from tidemark_ctl.views.realtime_tree import observe, stage_tree
from tidemark_ctl.views.render import show


class LegBroken(TidemarkError):
    """The marker did not arrive everywhere."""


def check(state: Path, *, config: Path | None, deadline_s: float, as_json: bool) -> None:
    """Run the command."""
    with opened_capture(state, config) as (store, node_requests, settings, _log):
        archive, watchdog_s = settings.archive, settings.watchdog.watchdog_s
        legs = EndToEndCheck(
            store,
            node_requests,
            archive,
            watchdog_s=watchdog_s,
            deadline_s=deadline_s,
            echo=partial(click.echo, err=True),
        ).run()
        observed = observe(store, archive, watchdog_s)
    broken = _broken(legs)
    tree = {
        "arrived": not broken,
        "stage": observed.view.stage.value,
        "delivering": stage_tree(observed)["delivering"],
        "legs": legs_tree(legs, deadline_s, as_json=as_json),
    }
    show(tree, as_json=as_json)
    if broken:
        message = "; ".join(f"leg {name.value} is broken: {leg.reason}" for name, leg in broken.items())
        raise LegBroken(message, hint=next(iter(broken.values())).hint)


def _broken(legs: Mapping[LegName, Leg]) -> dict[LegName, Leg]:
    """Return the broken legs; waiting legs wait for one of these."""
    broken = {name: leg for name, leg in legs.items() if leg.verdict is LegEnd.BROKEN}
    return broken or {name: leg for name, leg in legs.items() if leg.verdict is LegEnd.WAITS}
