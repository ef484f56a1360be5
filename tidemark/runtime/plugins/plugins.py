"""The plug-ins that a configuration names, found and checked before a daemon does anything else.

Transforms and serializers have no state of a run and are made once. A consumer is made for each capture, because a
capture ends with its consumer; here it is made once to check its constructor, and not used.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from tidemark.io.process.config import Config, PoolConfig
from tidemark.io.process.config_faults import sections_fault
from tidemark.io.process.plugin_config import USE, Options
from tidemark.model.errors import ConfigError
from tidemark.model.poison import Poison
from tidemark.model.secret import Secret
from tidemark.runtime.plugins.consumer import Consumer
from tidemark.runtime.plugins.handler import AnyHandler, Handler
from tidemark.runtime.plugins.plugin_options import PluginArguments, checked_options
from tidemark.runtime.plugins.plugin_path import (
    CONSUMERS,
    PLUGIN,
    SERIALIZERS,
    TRANSFORMS,
    BadPlugin,
    PluginKind,
    calling,
    find_plugin,
)
from tidemark.serializers.serializer import CORRECT_SETTINGS, Serializer
from tidemark.transforms.transform import Transform
from tidemark.wire.state.plugin_log import PluginUse, PluginUses

FINGERPRINT_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class Plugins:
    """The plug-ins of a daemon."""

    uses: PluginUses
    make_consumer: Callable[[], Consumer] | None = None  # called by one thread
    make_handler: Callable[[], AnyHandler] | None = None  # called by a pool; None, like the other: a built-in consumer
    serializer: Serializer | None = None
    transforms: tuple[Transform, ...] = ()

    @property
    def takes_any_form(self) -> bool:
        """Return whether the consumer is a plug-in, which takes rows also under another name or in another form."""
        return self.make_consumer is not None or self.make_handler is not None


def load_plugins(config: Config, where: str) -> Plugins:
    """Import and check the plug-ins of a configuration; `where`: its file. Raise `BadPlugin`, `PluginRaised`."""
    made = _consumer(config, where)
    _check_policies(config, made, where)
    serializer, serializer_use = _serializer(config, where)
    transforms, transform_uses = [], []
    for number, options in enumerate(config.transforms):
        transform, use = _transform(options, f"{where}: transforms.{number}")
        if not made.takes_any_form and not transform.keeps_tables:
            raise BadPlugin(
                f"{where}: transforms.{number}: {transform} gives rows another table or form, which the consumer "
                f"{config.deliver.consumer} does not take",
                hint="use it with a custom consumer",
            )
        transforms.append(transform)
        transform_uses.append(use)
    uses = PluginUses(
        made.uses.consumer,
        serializer_use,
        tuple(transform_uses),
        exclude_origins=config.select.exclude_origins,
        messages=config.select.messages,
    )
    return replace(made, uses=uses, serializer=serializer, transforms=tuple(transforms))


def built_in(consumer: str) -> Plugins:
    """Return the plug-ins of a configuration that names none."""
    return Plugins(PluginUses(PluginUse(consumer, "", "")))


def _consumer(config: Config, where: str) -> Plugins:
    """Return the consumer alone."""
    if not config.deliver.is_plugin:
        return built_in(config.deliver.consumer)
    key, section = f"{where}: deliver.consumer", f"{where}: consumer"
    make, use = _maker(config.deliver.consumer, CONSUMERS, config.consumer, key, section)
    uses = PluginUses(use)
    if isinstance(make(), Handler):
        return Plugins(uses, make_handler=cast("Callable[[], AnyHandler]", make))
    return Plugins(uses, make_consumer=cast("Callable[[], Consumer]", make))


def _check_policies(config: Config, made: Plugins, where: str) -> None:
    """Check the sections that need a consumer of some kind."""
    if not made.takes_any_form and Poison(config.poison.policy) is not Poison.FAIL:
        raise BadPlugin(
            f"{where}: poison.policy is {config.poison.policy}: the consumer {config.deliver.consumer} handles "
            "every change",
            hint='it is for a custom consumer; remove it, or write "fail"',
        )
    if made.make_handler is None and config.pool != PoolConfig():
        raise BadPlugin(
            f"{where}: pool: the consumer {config.deliver.consumer} is called by one thread, and has no pool",
            hint="it is for a consumer that is a subclass of tidemark.Handler; remove the section",
        )
    if made.make_handler is not None and config.pool.buffer_bytes > config.deliver.unconfirmed_bytes_max:
        raise BadPlugin(f"{where}: pool.buffer_bytes: at most deliver.unconfirmed_bytes_max")


def _serializer(config: Config, where: str) -> tuple[Serializer | None, PluginUse | None]:
    name = config.deliver.serializer
    if not name:
        return None, None
    make, use = _maker(name, SERIALIZERS, config.serializer, f"{where}: deliver.serializer", f"{where}: serializer")
    serializer = make()
    if fault := sections_fault(serializer.settings):
        raise BadPlugin(f"{where}: deliver.serializer: settings of {name}: {fault}", hint=CORRECT_SETTINGS)
    for section, values in serializer.settings.items():
        for key, wanted in values.items():
            configured = getattr(config, section, None)
            if not hasattr(configured, key):
                raise BadPlugin(
                    f"{where}: deliver.serializer: {name} needs {section}.{key}, and the configuration has no such key",
                    hint=CORRECT_SETTINGS,
                )
            if getattr(configured, key) != wanted:
                raise BadPlugin(
                    f"{where}: deliver.serializer: {name} needs {section}.{key} = {wanted!r}",
                    hint="the types are fixed by `cdcctl init`: a state with others needs to be created again",
                )
    return serializer, use


def _transform(options: Options, section: str) -> tuple[Transform, PluginUse]:
    name = str(options[USE])
    own = {key: value for key, value in options.items() if key != USE}
    make, use = _maker(name, TRANSFORMS, own, f"{section}.{USE}", section)
    return make(), use


def _maker(
    name: str, kind: PluginKind[PLUGIN], options: Options, key: str, section: str
) -> tuple[Callable[[], PLUGIN], PluginUse]:
    """Return the function that makes a plug-in, and its description for the state."""
    found = find_plugin(name, kind, key)
    arguments = checked_options(found.plugin, options, section)
    construct = partial(type.__call__, found.plugin, *arguments.repeated, **arguments.named)

    def make() -> PLUGIN:
        try:
            made: PLUGIN = calling(construct, f"{section}: the constructor of {name}")
        except ConfigError as error:  # of a transform of Tidemark: the file and the section are missing in it
            raise BadPlugin(f"{section}: {error}", hint=error.hint) from error
        return made

    return make, PluginUse(found.path, found.version, _fingerprint(options, arguments))


def _fingerprint(options: Options, arguments: PluginArguments) -> str:
    """Return the fingerprint of options: of a secret, its content counts, and not where it is."""
    secrets = {name: each.digest for name, each in arguments.named.items() if isinstance(each, Secret)}
    stored = json.dumps({**options, **secrets}, sort_keys=True, default=str).encode()
    return hashlib.sha256(stored).hexdigest()[:FINGERPRINT_CHARACTERS] if options else ""
