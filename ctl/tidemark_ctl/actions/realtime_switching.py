"""`cdcctl realtime on|off`: the operator's switch between realtime and archive delivery (I16)."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click

from tidemark_ctl.opened_capture import opened_capture
from tidemark_ctl.requests.realtime_switch import RealtimeSwitch, SwitchSettings
from tidemark_ctl.requests.waiting import NotComplete
from tidemark_ctl.views.embedded import refuse_engine
from tidemark_ctl.views.realtime_tree import observe, stage_tree
from tidemark_ctl.views.render import show


def on(state: Path, *, config: Path | None, deadline_s: float, as_json: bool) -> None:
    """Run the command."""
    with _switching(state, config, deadline_s, as_json=as_json) as switching:
        switching.on()


def off(state: Path, *, config: Path | None, deadline_s: float, force: bool, as_json: bool) -> None:
    """Run the command."""
    with _switching(state, config, deadline_s, as_json=as_json, kills=force) as switching:
        switching.off(force=force)


@contextmanager
def _switching(
    state: Path, config: Path | None, deadline_s: float, *, as_json: bool, kills: bool = False
) -> Iterator[RealtimeSwitch]:
    """Request a switch; print the resulting state, also if it is not the requested one."""
    with opened_capture(state, config, kills=kills) as (store, node_requests, settings, log):
        refuse_engine(store, "it has no archiver that could deliver instead, so realtime cannot be switched")
        switch = SwitchSettings.of(settings, store.identity.segment_bytes)
        look = partial(observe, store, settings.archive, settings.watchdog.watchdog_s)
        try:
            yield RealtimeSwitch(
                store, switch, node_requests, log, deadline_s=deadline_s, echo=partial(click.echo, err=True)
            )
        except NotComplete:
            show(stage_tree(look()), as_json=as_json)
            raise
        show(stage_tree(look()), as_json=as_json)
