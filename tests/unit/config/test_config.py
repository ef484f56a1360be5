"""Configuration: documented, overridable, strict."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from tidemark.io.process.config import PLUGIN_SECTIONS, BadConfig, Config
from tidemark.io.process.config_loading import load_config, parse_config
from tidemark.model.errors import ExitCode

FILE = Path(__file__).parents[3] / "conf" / "tidemark.toml"
ONLY_LOG = "[[lake.tables]]\npattern = 'a'\nwrite = 'log'\n"
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
    sections = [part for part in fields(config) if part.name not in PLUGIN_SECTIONS]
    known = {f"{part.name}.{key.name}" for part in sections for key in fields(getattr(config, part.name))}
    assert documented == known


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("[rign]\nbytes_max = 1", "unknown key rign"),
        ("[ring]\nbyte_max = 1", "unknown key ring.byte_max"),
        ("[ring]\nbytes_max = -1", "ring.bytes_max: Expected `int` >= 0"),
        ("[deliver]\nconsumer = ''", "deliver.consumer: Expected `str` of length >= 1"),
        ("[outbox]\nbytes_max = 4398046511105", "outbox.bytes_max: Expected `int` <= 4398046511104"),
        ("[ring]\nbytes_max = 524287", "ring.bytes_max is 524287: at least 524288, or 0"),
        ("[types]\ndecimals = 'exact'", "types.decimals: Expected one of 'precise', 'string', 'double'"),
        ("[types]\nout_of_range = 'infinity'", "types.out_of_range: Expected one of 'clamp', 'null', 'string'"),
        ("[types]\ndecimal = 'string'", "unknown key types.decimal"),
        ("[metrics]\nport = true", "metrics.port: Expected `int`, got `bool`"),
        ("[retry]\nfirst_s = nan", "retry.first_s: Expected `float` > 0.0"),
        ("[select]\ntables = 'a.*'", "select.tables: Expected `array`, got `str`"),
        ("[select]\nexclude_origins = ['any', 'x']", "select.exclude_origins: Expected `str` matching regex"),
        ("ring = 5", "ring: Expected a section"),
        (
            "[rings]\n[ring]\nbytes_max = 'x'\nsize = 1",
            "unknown key rings; unknown key ring.size; ring.bytes_max: Expected",
        ),
        ("[capture]\nname = 'a/b'", "capture.name: Expected `str` matching regex"),
        ("[reader]\nhold_bytes = 2147483649", "reader.hold_bytes: at most half of outbox.bytes_max"),
        ("[outbox]\nbytes_max = 2000000", "deliver.group_bytes_max: at most a quarter of outbox.bytes_max"),
        ("[deliver]\nconsumer = 'jsonl'", "deliver.jsonl_file: the jsonl consumer needs it"),
        ("[standby]\nfollow = true", "markers.key_file must name the key of the markers of the delivering capture"),
        ("[copy]\nbase_backup = '/backup'", "copy.base_backup requires archive.folder"),
        ("[standby]\nlake = '/lake'", "standby.lake requires standby.follow"),
        (f"{FOLLOW}lake = 'lake'", "standby.lake: must be an absolute path"),
        (f"{FOLLOW}lake = '/lake'\n[deliver]\nconsumer = 'null'", "standby.lake: a lake is filled from the outbox"),
        (f"{FOLLOW}[capture]\ndsn = 'host=one,two'", "standby.follow: capture.dsn names several hosts"),
        ("[watchdog]\nwatchdog_s = 2.9", "watchdog.watchdog_s: Expected `float` >= 3.0"),
        ("[lake]\ntable = 1", "unknown key lake.table"),
        ("[[lake.tables]]\nlog_keep_days = 1", "lake.tables: Object missing required field `pattern` - at `$[0]`"),
        ("[[lake.tables]]\npattern = 'a'\nkeep = 1", "lake.tables: Object contains unknown field `keep` - at `$[0]`"),
        ("[[lake.tables]]\npattern = ''", "lake.tables: Expected `str` of length >= 1 - at `$[0].pattern`"),
        ("[[lake.tables]]\npattern = 'a'\nlog_keep_days = -1", "Expected `int` >= 0 - at `$[0].log_keep_days`"),
        (
            "[[lake.tables]]\npattern = 'a'\nwrite = 'logs'",
            "lake.tables: Expected one of 'both', 'log', 'replica' - at `$[0].write`",
        ),
        (
            "[[lake.tables]]\npattern = 'a'\nschema_policy = 'follow'",
            "lake.tables: Expected one of 'evolve', 'fail', 'ignore' - at `$[0].schema_policy`",
        ),
        ("[[lake.tables]]\npattern = 'a'\nmerge_rows = 999", "Expected `int` >= 1000 - at `$[0].merge_rows`"),
        (f"{ONLY_LOG}cluster = ['day']", "lake.tables.0.cluster: with write = 'log' there is no replica"),
        (
            "[[lake.tables]]\npattern = 'a'\npartition = ['b', 'b']",
            "lake.tables.0.partition: b is listed twice",
        ),
        (
            "[[lake.tables]]\npattern = 'a'\npartition = ['b']\ncluster = ['b']",
            "lake.tables.0.cluster: b is a partition column, of which each file has one value",
        ),
        (f"{ONLY_LOG}merge_interval_s = 5", "lake.tables.0.merge_interval_s: with write = 'log' there is no replica"),
        (f"{ONLY_LOG}soft_deletes = true", "lake.tables.0.soft_deletes: with write = 'log' there is no replica"),
        (
            "[[lake.tables]]\npattern = 'a'\ndeleted_keep_days = 1",
            "lake.tables.0.deleted_keep_days: without soft_deletes no deleted row is kept",
        ),
        (f"{ONLY_LOG}merge_rows = 1000", "lake.tables.0.merge_rows: with write = 'log' there is no replica"),
        (
            "[[lake.tables]]\npattern = 'a'\nwrite = 'replica'\nlog_keep_days = 1",
            "lake.tables.0.log_keep_days: with write = 'replica' there is no log",
        ),
        ("[[lake.tables]]\npattern = 'a'\ncluster = ['b', 'b']", "lake.tables.0.cluster: b is listed twice"),
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


@pytest.mark.parametrize(("text", "meant"), [("yes", True), (" ON", True), ("1", True), ("off", False), ("F", False)])
def test_the_environment_may_write_a_boolean_in_words(text: str, meant: bool) -> None:  # noqa: FBT001 - a parameter
    config = parse_config("", {"TIDEMARK_REALTIME__AUTOMATIC_RETURN": text}, where="test.toml")
    assert config.realtime.automatic_return is meant


def test_the_environment_may_have_spaces_around_a_value() -> None:
    environment = {"TIDEMARK_METRICS__PORT": " 9750 ", "TIDEMARK_RETRY__MAX_S": "12.5\n"}
    config = parse_config("", environment, where="test.toml")
    assert (config.metrics.port, config.retry.max_s) == (9750, 12.5)


def test_a_typo_in_the_environment_is_an_error_too() -> None:
    with pytest.raises(BadConfig, match=r"unknown key outbox\.byte"):
        parse_config("", {"TIDEMARK_OUTBOX__BYTE": "1"}, where="test.toml")


@pytest.mark.parametrize("key", ["metrics.port", "log.level", "types.binary", "capture.name", "copy.enabled"])
def test_a_refused_value_is_not_reported(key: str) -> None:
    section, _, name = key.partition(".")
    with pytest.raises(BadConfig, match=key) as raised:
        parse_config(f"[{section}]\n{name} = 'hunter 2'", {}, where="test.toml")
    assert "hunter" not in str(raised.value)


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
    with pytest.raises(BadConfig, match=r"cannot read the configuration [^:]+: No such file or directory$") as caught:
        load_config(tmp_path / "none.toml", {})
    assert "may read" in caught.value.hint


def test_paths_that_several_programs_follow_are_absolute() -> None:
    for key, text in (
        ("archive.folder", "[archive]\nfolder = 'spool'"),
        ("markers.key_file", "[markers]\nkey_file = 'marker.key'"),
        ("deliver.jsonl_file", "[deliver]\nconsumer = 'jsonl'\njsonl_file = 'changes.jsonl'"),
    ):
        with pytest.raises(BadConfig, match=f"{key}: must be an absolute path"):
            parse_config(text, {}, where="here")
    parse_config("[deliver]\nconsumer = 'jsonl'\njsonl_file = '-'", {}, where="here")
