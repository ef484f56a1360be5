"""A URL instead of a local path is refused by name, and no folder is created from it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes.cdcctl import cdcctl, refused
from tidemark.io.host.local_path import NoLakeLocation, NotLocal, local_path
from tidemark.io.process.config_loading import load_config
from tidemark.model.errors import ExitCode
from tidemark.pipeline.driver import program as pipeline
from tidemark.pipeline.lake import comparison

LAKE = "gs://bucket/lake"


@pytest.mark.parametrize("text", [LAKE, "s3:/bucket", "abfss://c@account/x", "file:///srv/lake", "hdfs://name/x"])
def test_text_that_looks_like_a_url_is_not_a_path(text: str) -> None:
    with pytest.raises(NotLocal, match=f"--lake: {text} is a URL"):
        local_path(text, "--lake")


@pytest.mark.parametrize("text", ["/srv/lake", "lake", "./a:b/c", "C:/x", "lake:1/x", "", "-"])
def test_every_name_of_a_path_is_accepted(text: str) -> None:
    assert local_path(text) == Path(text)


def test_every_path_of_cdcctl_is_checked_and_nothing_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    state = str(tmp_path / "state")
    refused(
        cdcctl("spark", "run", "--state", state, "--lake", LAKE),
        ExitCode.CONFIG,
        "--lake: gs:",
        "is a URL of another store",
    )
    refused(cdcctl("init", "--state", "gs://b/x", "--dsn", ""), ExitCode.CONFIG, "--state: gs://b/x is a URL")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("program", [pipeline.main, comparison.main])
def test_the_pipeline_and_the_comparison_refuse_a_url_themselves(
    program: Callable[[list[str]], int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--state", str(tmp_path), "--lake", LAKE, *(["--dsn", ""] if program is comparison.main else [])]
    assert program(words) == ExitCode.CONFIG
    assert f"--lake: {LAKE} is a URL" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_lake_of_a_follower_is_a_folder_or_in_an_object_store(tmp_path: Path) -> None:
    config = tmp_path / "tidemark.toml"
    config.write_text(f'[standby]\nfollow = true\nlake = "{LAKE}"\n[markers]\nkey_file = "/etc/key"\n')
    with pytest.raises(NoLakeLocation, match=f"standby.lake: {LAKE} is a URL"):
        load_config(config, {})
    config.write_text(config.read_text().replace("gs:", "s3:"))
    assert load_config(config, {}).standby.lake == "s3://bucket/lake"
