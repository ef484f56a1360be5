"""The consumer of a state and the plug-ins of its daemons, for `cdcctl status`."""

from tidemark.wire.state.plugin_log import PluginLog
from tidemark_ctl.views.render import Tree


def plugins_tree(log: PluginLog | None) -> dict[str, Tree]:
    """Return the consumer, and the plug-ins of each daemon since its last start in the order in which changes pass."""
    if log is None:
        return {"consumer": None, "plugins": {}}
    shown: dict[str, Tree] = {role: [str(use) for use in uses.in_order] for role, uses in log.uses.items()}
    return {"consumer": log.consumer, "plugins": shown}
