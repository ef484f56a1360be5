"""Configuration: documented, overridable, strict."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from tidemark.io.process.config import BadConfig, Config, load_config, parse_config
from tidemark.model.errors import ExitCode

FILE = Path(__file__).parents[3] / "conf" / "tidemark.toml"
FOLLOW = "[markers]\nkey_file = '/etc/tidemark/marker.key'\n[standby]\nfollow = true\n"


def test_the_file_in_conf_contains_the_defaults() -> None:
    assert load_config(FILE, {}) == Config()
    shown = re.sub("^#(?=[a-z_]+ = )", "", FILE.read_text(), flags=re.MULTILINE)  # defaults, commented out
    assert parse_config(shown, {}, where="test.toml") == Config()


def test_every_key_is_in_the_file_with_a_comment_above_it() -> None:
    lines = FILE.read_text().splitlines()
    section, documented = "", set()
    for above, line in zip(["", *lines], lines, strict=False):
        if line.startswith("["):
            section = line.strip("[]")
        elif re.match("#?[a-z_]+ = ", line):
            assert above.startswith("# "), line
            documented.add(f"{section}.{line.split('=')[0].strip('# ')}")
    config = Config()
    known = {f"{part.name}.{key.name}" for part in fields(config) for key in fields(getattr(config, part.name))}
    assert documented == known


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("[rign]\nbytes_max = 1", "unknown key rign"),
        ("[ring]\nbyte_max = 1", "unknown key ring.byte_max"),
        ("[ring]\nbytes_max = -1", "ring.bytes_max: Input should be greater than or equal to 0"),
        ("[deliver]\nconsumer = 'kafka'", "deliver.consumer: Input should be 'outbox', 'jsonl' or 'null'"),
        ("[ring]\nbytes_max = 524287", "ring.bytes_max is 524287: at least 524288, or 0"),
        ("[types]\ndecimals = 'exact'", "types.decimals: Input should be 'precise', 'string' or 'double'"),
        ("[types]\nout_of_range = 'infinity'", "types.out_of_range: Input should be 'clamp', 'null' or 'string'"),
        ("[types]\ndecimal = 'string'", "unknown key types.decimal"),
        ("[capture]\nname = 'a/b'", "capture.name: String should match pattern"),
        ("[outbox]\nbytes_max = 2000000", "deliver.group_bytes_max: at most a quarter of outbox.bytes_max"),
        ("[deliver]\nconsumer = 'jsonl'", "deliver.jsonl_file: the jsonl consumer needs it"),
        ("[standby]\nfollow = true", "markers.key_file must name the key of the markers of the delivering capture"),
        ("[standby]\nlake = '/lake'", "standby.lake requires standby.follow"),
        (f"{FOLLOW}lake = 'lake'", "standby.lake: must be an absolute path"),
        (f"{FOLLOW}lake = '/lake'\n[deliver]\nconsumer = 'null'", "standby.lake: a lake is filled from the outbox"),
        (f"{FOLLOW}[capture]\ndsn = 'host=one,two'", "standby.follow: capture.dsn names several hosts"),
        ("[watchdog]\nwatchdog_s = 2.9", "watchdog.watchdog_s: Input should be greater than or equal to 3"),
        ("[lake]\ntable = 1", "unknown key lake.table"),
        ("[[lake.tables]]\nlog_keep_days = 1", "lake.tables.0.pattern: Field required"),
        ("[[lake.tables]]\npattern = 'a'\nkeep = 1", "unknown key lake.tables.0.keep"),
        ("[[lake.tables]]\npattern = ''", "lake.tables.0.pattern: String should have at least 1 character"),
        ("[[lake.tables]]\npattern = 'a'\nlog_keep_days = -1", "lake.tables.0.log_keep_days: Input should be greater"),
        (2 * "[[lake.tables]]\npattern = 'a'\n", "lake.tables.1.pattern: a is in an earlier entry, which applies"),
        ("[ring", "is not TOML"),
    ],
)
def test_a_wrong_configuration_is_refused_by_its_key(text: str, reported: str) -> None:
    with pytest.raises(BadConfig) as raised:
        parse_config(text, {}, where="test.toml")
    assert str(raised.value).startswith("test.toml")
    assert reported in str(raised.value)
    assert raised.value.exit_code is ExitCode.CONFIG


def test_the_environment_overrides_the_file() -> None:
    environment = {
        "TIDEMARK_OUTBOX__BYTES_MAX": "1073741824",
        "TIDEMARK_SELECT__TABLES": "app.*, public.account",
        "TIDEMARK_COPY__ENABLED": "false",
        "TIDEMARK_PG_CACHE": "not a key: one underscore",
        "PATH": "/bin",
    }
    config = parse_config("[outbox]\nbytes_max = 2147483648", environment, where="test.toml")
    assert config.outbox.bytes_max == 1 << 30
    assert config.select.tables == ("app.*", "public.account")
    assert not config.copy.enabled


@pytest.mark.parametrize("name", ["template1", "template1, shop"])
def test_a_list_in_the_environment_is_recognised_by_the_type_of_its_key(name: str) -> None:
    config = parse_config("", {"TIDEMARK_SEED__DATABASES": name}, where="test.toml")
    assert config.seed.databases == tuple(name.split(", "))


def test_a_typo_in_the_environment_is_an_error_too() -> None:
    with pytest.raises(BadConfig, match=r"unknown key outbox\.byte"):
        parse_config("", {"TIDEMARK_OUTBOX__BYTE": "1"}, where="test.toml")


def test_a_refused_value_is_not_reported() -> None:
    with pytest.raises(BadConfig) as raised:
        parse_config("[metrics]\nport = 'hunter2'", {}, where="test.toml")
    assert "hunter2" not in str(raised.value)


def test_the_default_ring_has_space_for_all_wal_that_is_not_archived_yet() -> None:
    assert Config().ring_bytes(16 << 20) == 256 << 20
    assert Config().ring_bytes(64 << 20) == 1 << 30
    assert parse_config("[ring]\nbytes_max = 1048576", {}, where="t").ring_bytes(16 << 20) == 1 << 20
    archived = parse_config("[ring]\nbytes_max = 1048576\n[archive]\nfolder = '/wal'", {}, where="t")
    assert archived.ring_bytes(512 << 10) == 1 << 20
    with pytest.raises(BadConfig, match="is 1048576: with an archive it is at least 33554432, 2 WAL segments"):
        archived.ring_bytes(16 << 20)


def test_the_file_is_toml_that_names_no_secret() -> None:
    keys = {key for table in tomllib.loads(FILE.read_text()).values() for key in table}
    assert not {key for key in keys if "password" in key or "secret" in key}


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="cannot read the configuration"):
        load_config(tmp_path / "none.toml", {})


def test_paths_that_several_programs_follow_are_absolute() -> None:
    for key, text in (
        ("archive.folder", "[archive]\nfolder = 'spool'"),
        ("markers.key_file", "[markers]\nkey_file = 'marker.key'"),
    ):
        with pytest.raises(BadConfig, match=f"{key}: must be an absolute path"):
            parse_config(text, {}, where="here")
