"""`cdcctl init` refuses plug-ins with which a daemon would end, before it connects to the node."""

from pathlib import Path

import pytest

from tests.support.processes.cdcctl import cdcctl
from tidemark.model.errors import ExitCode

PLUGINS = "tests.support.plugins.bad_plugins"
NODE = "[capture]\ndsn = 'postgresql:///postgres?host=/nowhere'\n"


pytestmark = pytest.mark.usefixtures("forked")


@pytest.mark.parametrize(
    ("text", "code", "reported"),
    [
        ("[deliver]\nconsumer = 'no_such.module:Name'\n", ExitCode.CONFIG, "deliver.consumer: there is no module"),
        (
            f"[deliver]\nconsumer = '{PLUGINS}:AcceptingConsumer'\n[consumer]\nfile = 'x'\n",
            ExitCode.CONFIG,
            "consumer.file: unknown key",
        ),
        (
            "[[transforms]]\nuse = 'tidemark:Mask'\ncolumns = ['public.person.email']\nconstants = 'x'\n",
            ExitCode.CONFIG,
            "transforms.0.constants: unknown key",
        ),
        (
            f"[deliver]\nserializer = '{PLUGINS}:SerializerOfNoKey'\nconsumer = '{PLUGINS}:AcceptingConsumer'\n",
            ExitCode.CONFIG,
            "needs types.decimal, and the configuration has no such key",
        ),
        (
            f"[deliver]\nconsumer = '{PLUGINS}:RaisingConsumer'\n",
            ExitCode.CONSUMER_FAILED,
            "the constructor of tests.support.plugins.bad_plugins:RaisingConsumer raised ValueError: no target",
        ),
    ],
)
@pytest.mark.parametrize("options", [[], ["--from-backup", "/nowhere"]])
def test_init_refuses_a_plugin_with_which_a_daemon_would_end(
    tmp_path: Path, text: str, code: ExitCode, reported: str, options: list[str]
) -> None:
    config, state = tmp_path / "tidemark.toml", tmp_path / "state"
    config.write_text(NODE + text)
    done = cdcctl("init", "--state", state, "--config", config, *options)
    assert done.code == code
    assert f"{config}: " in done.err
    assert reported in done.err
    assert not state.exists()


def test_init_accepts_plugins_and_goes_on_to_the_node(tmp_path: Path) -> None:
    config = tmp_path / "tidemark.toml"
    config.write_text(f"{NODE}[deliver]\nconsumer = '{PLUGINS}:AcceptingConsumer'\n")
    assert cdcctl("init", "--state", tmp_path / "state", "--config", config).code == ExitCode.NODE_UNREACHABLE


def test_init_without_a_configuration_checks_the_plugins_of_the_environment(tmp_path: Path) -> None:
    state = tmp_path / "state"
    dsn = "postgresql:///postgres?host=/nowhere"
    done = cdcctl("init", "--state", state, "--dsn", dsn, TIDEMARK_DELIVER__CONSUMER="no_such.module:Name")
    assert done.code == ExitCode.CONFIG
    assert "the environment: deliver.consumer: there is no module no_such" in done.err
    assert not state.exists()
