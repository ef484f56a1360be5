"""The options and credentials of an object store: validated at the start, and secret."""

import os
import re
from pathlib import Path

import pytest

from tidemark.io.host.local_path import NoLakeLocation, NotText, lake_location, local_path
from tidemark.io.process.config_loading import load_config
from tidemark.io.process.lake_config import LakeConfig, store_environment
from tidemark.pipeline.driver.arguments import parse_arguments
from tidemark.pipeline.driver.program import with_store_options
from tidemark.pipeline.storage.credentials import CredentialSource
from tidemark.pipeline.storage.role_credentials import Credentials
from tidemark.pipeline.storage.store_errors import BadStore
from tidemark.pipeline.storage.store_options import REGION_OF_ENDPOINT, store_options

SECRET = "wJalrXUtnFEMI"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": SECRET}
FILE = f"[default]\naws_access_key_id = AKIA\naws_secret_access_key = {SECRET}\n"


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://my.bucket-1/a/b_c=d/", "s3://my.bucket-1/a/b_c=d"),
        ("/srv/lake/", "/srv/lake"),
    ],
)
def test_a_lake_is_in_a_folder_or_below_a_prefix(text: str, location: str) -> None:
    assert lake_location(text) == location


@pytest.mark.parametrize(
    "text", ["gs://bucket/lake", "s3://", "s3:/bucket", "s3://B", "s3://bucket//a", "s3://bucket/../a", "s3://bucket/ä"]
)
def test_another_url_is_no_location_of_a_lake(text: str) -> None:
    with pytest.raises(NoLakeLocation, match="--lake: "):
        lake_location(text, "--lake")


@pytest.mark.parametrize("folder", ["a%20b", "%41", "a%%2Fb", "a\\b", "a[b", "a]b", "a^b", "a|b", "a\tb", "a\x7fb"])
def test_a_path_that_delta_rs_reads_as_another_one_is_refused(folder: str) -> None:
    with pytest.raises(NoLakeLocation, match=r"--lake: /srv/(?s:.)*no lake can be in a path with") as raised:
        lake_location(f"/srv/{folder}/lake", "--lake")
    assert str(raised.value.hint).startswith("choose a folder")


@pytest.mark.parametrize("folder", ["a%20b", "a[b"])
def test_a_link_to_such_a_path_is_refused(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(NoLakeLocation, match=rf"--lake: .*/link/lake is .*/{re.escape(folder)}/lake: no lake can be"):
        lake_location(str(tmp_path / "link" / "lake"), "--lake")


def test_a_path_that_is_not_utf8_is_refused() -> None:
    text = os.fsdecode(b"/srv/\xff/lake")
    for located in (lake_location, local_path):
        with pytest.raises(NotText, match=r"--lake: .* is not UTF-8"):
            located(text, "--lake")


@pytest.mark.parametrize("folder", ["a b", "a%b", "a%", "a:b", "a#b?c*", "äöü", "a{b}<c>", "~"])
def test_other_paths_are_locations_of_a_lake(folder: str) -> None:
    assert lake_location(f"/srv/{folder}") == f"/srv/{folder}"


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:9000", "http://[::1]:9000/", "http://localhost", "https://s3.example"]
)
def test_an_endpoint_without_tls_is_permitted_to_loopback_addresses(endpoint: str) -> None:
    options = store_options(LakeConfig(store_endpoint=endpoint), {})
    assert (options.endpoint, options.region) == (endpoint.rstrip("/"), REGION_OF_ENDPOINT)
    assert options.is_plain is endpoint.startswith("http:")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (LakeConfig(store_endpoint="http://s3.example:9000"), "without TLS, anyone on the network path to s3.example"),
        (LakeConfig(store_endpoint=f"https://user:{SECRET}@s3.example"), "contains a user or a password"),
        (LakeConfig(store_endpoint="s3.example:9000"), "it must be http:// or https:// with a host"),
        (LakeConfig(store_endpoint="https://s3.example/bucket"), "it must be http:// or https:// with a host"),
        (LakeConfig(store_endpoint=f"https://AKIA:12/{SECRET}@host"), "contains a user or a password"),
        (LakeConfig(store_endpoint=f"https://s3.example:9000/?token={SECRET}"), "a query"),
        (LakeConfig(store_endpoint="https://s3.example:port"), "is not a URL"),
        (LakeConfig(), "no region"),
    ],
)
def test_unusable_options_are_refused_with_what_to_do(config: LakeConfig, said: str) -> None:
    with pytest.raises(BadStore, match=said) as refused:
        store_options(config, {})
    assert refused.value.hint
    assert SECRET not in str(refused.value)


def test_http_to_another_host_needs_an_explicit_setting() -> None:
    config = LakeConfig(store_endpoint="http://s3.example:9000", store_allow_http=True)
    assert store_options(config, {}).is_plain


def test_the_environment_of_aws_tools_is_used_where_a_setting_is_missing() -> None:
    environment = {
        "AWS_ENDPOINT_URL": "https://a",
        "AWS_ENDPOINT_URL_S3": "https://b",
        "AWS_DEFAULT_REGION": "eu-north-1",
    }
    found = store_options(LakeConfig(), environment)
    assert (found.endpoint, found.region, found.credentials_file) == ("https://b", "eu-north-1", "")
    chosen = LakeConfig(store_endpoint="https://c", store_region="x", store_credentials_file="/file")
    found = store_options(chosen, environment)
    assert (found.endpoint, found.region, found.credentials_file) == ("https://c", "x", "/file")


def test_the_command_line_overrides_the_configuration_and_another_program_gets_both() -> None:
    words = ["--state", "s", "--lake", "s3://b/x", "--store-endpoint", "https://a", "--store-allow-http"]
    given = with_store_options(LakeConfig(store_endpoint="https://z", store_region="r"), parse_arguments(words))
    assert (given.store_endpoint, given.store_region, given.store_allow_http) == ("https://a", "r", True)
    assert load_config(None, store_environment(given)).lake == given


# Credentials


def credentials_file(path: Path, text: str = FILE, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_credentials_come_from_the_environment_or_a_file_and_are_not_printed(tmp_path: Path) -> None:
    expected = Credentials("AKIA", SECRET)
    assert CredentialSource("", KEYS).current() == expected
    assert CredentialSource(credentials_file(tmp_path / "file"), {}).current() == expected
    other = FILE.replace("default", "lake").replace("AKIA", "OTHER")
    assert (
        CredentialSource(credentials_file(tmp_path / "two", FILE + other), {"AWS_PROFILE": "lake"}).current().key
        == "OTHER"
    )
    assert SECRET not in repr(expected)
    assert "AKIA" not in repr(expected)


def test_missing_credentials_are_refused() -> None:
    with pytest.raises(BadStore, match="there are no credentials") as refused:
        CredentialSource("", {"AWS_ACCESS_KEY_ID": "AKIA"})
    assert "store_credentials_file" in refused.value.hint


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        (FILE, 0o640, "has mode 0640: others may read it"),
        (FILE, 0o604, "has mode 0604: others may read it"),
        (FILE.replace("default", "other"), 0o600, r"has no section \[default\] with"),
        (f"{SECRET}\n", 0o600, r"has no section \[default\] with"),
        (None, 0, "cannot be read: No such file or directory"),
    ],
)
def test_an_unusable_file_is_refused_without_its_content(
    tmp_path: Path, text: str | None, mode: int, said: str
) -> None:
    path = tmp_path / "file"
    if text is not None:
        credentials_file(path, text, mode)
    with pytest.raises(BadStore, match=said) as refused:
        CredentialSource(str(path), {})
    assert SECRET not in f"{refused.value}{refused.value.hint}{refused.value.__cause__}"


def test_a_file_that_is_being_replaced_by_a_wrong_one_leaves_the_present_credentials(tmp_path: Path) -> None:
    path = tmp_path / "file"
    source = CredentialSource(credentials_file(path), {})
    credentials_file(tmp_path / "new", "half of a fi")
    (tmp_path / "new").rename(path)
    assert source.current() == Credentials("AKIA", SECRET)
    assert "has no section" in source.fault
    path.unlink()
    assert source.current() == Credentials("AKIA", SECRET)
    assert os.strerror(2) in source.fault
    credentials_file(tmp_path / "new", FILE.replace("AKIA", "NEXT"))
    (tmp_path / "new").rename(path)
    assert (source.current().key, source.fault) == ("NEXT", "")
