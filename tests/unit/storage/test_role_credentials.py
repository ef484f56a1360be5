"""Credentials of the role of a container or a machine: fetched, renewed before they expire, and never printed."""

from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.support.servers.metadata_service import MetadataService, metadata_service
from tidemark.pipeline.storage.credentials import CredentialSource
from tidemark.pipeline.storage.role_credentials import (
    ATTEMPTS,
    FULL_URI,
    METADATA_DISABLED,
    METADATA_ENDPOINT,
    RENEW_BEFORE_S,
    RETRY_S,
    Credentials,
    RoleCredentials,
)
from tidemark.pipeline.storage.store_errors import BadStore

pytestmark = pytest.mark.feature("L07")
FIRST = Credentials("FIRST", "secret of FIRST", "t")
NEXT = Credentials("NEXT", "secret of NEXT", "t")


class RoleClock:
    """A clock that a test sets; a pause moves it."""

    now_s = 1e9

    def wall_s(self) -> float:
        return self.now_s

    def pause(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def service() -> Iterator[MetadataService]:
    with metadata_service() as made:
        yield made


def of_machine(service: MetadataService, clock: RoleClock) -> RoleCredentials:
    return RoleCredentials({METADATA_ENDPOINT: service.endpoint}, wall_s=clock.wall_s, pause=clock.pause)


def test_a_machine_has_the_credentials_of_its_role_by_a_token(service: MetadataService) -> None:
    source = CredentialSource("", {METADATA_ENDPOINT: service.endpoint})
    assert (source.current(), source.fault) == (FIRST, "")


def test_credentials_in_the_environment_come_first(service: MetadataService) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "OWN", "AWS_SECRET_ACCESS_KEY": "s"}
    assert CredentialSource("", {METADATA_ENDPOINT: service.endpoint, **keys}).current() == Credentials("OWN", "s")


def test_a_container_has_the_credentials_at_its_address(service: MetadataService, tmp_path: Path) -> None:
    file, url = tmp_path / "token", f"{service.endpoint}/container?id=7"
    file.write_text(f"{service.container_token}\n")
    for suffix, value in (("", service.container_token), ("_FILE", str(file))):
        assert RoleCredentials({FULL_URI: url, f"AWS_CONTAINER_AUTHORIZATION_TOKEN{suffix}": value}).current() == FIRST


def test_a_token_is_not_sent_without_tls_to_another_machine() -> None:
    with pytest.raises(BadStore, match="neither https:// nor an address of this machine"):
        RoleCredentials({FULL_URI: "http://metadata.example/"}, pause=lambda _: None)


def test_credentials_are_renewed_before_they_expire(service: MetadataService) -> None:
    clock = RoleClock()
    service.expires_s = clock.now_s + 3600
    source = of_machine(service, clock)
    service.key, expired_s = "NEXT", service.expires_s
    service.expires_s += 3600
    clock.now_s = expired_s - RENEW_BEFORE_S - 1
    assert source.current() == FIRST
    clock.now_s += 1
    assert source.current() == NEXT


def test_a_failed_renewal_leaves_the_present_credentials_and_is_repeated(service: MetadataService) -> None:
    clock = RoleClock()
    service.expires_s = clock.now_s + 3600
    source = of_machine(service, clock)
    clock.now_s, service.key, service.status = service.expires_s, "NEXT", HTTPStatus.SERVICE_UNAVAILABLE
    assert (source.current(), source.fault) == (FIRST, "127.0.0.1 answers PUT with 503")
    service.status = HTTPStatus.OK
    assert source.current() == FIRST
    clock.now_s += RETRY_S
    assert (source.current(), source.fault) == (NEXT, "")


@pytest.mark.parametrize("text", ['{"AccessKeyId": "FIRST"}', "[]", '{"SecretAccessKey": "secret of FI', ""])
def test_an_answer_without_credentials_is_refused_without_its_content(service: MetadataService, text: str) -> None:
    service.text, clock = text, RoleClock()
    with pytest.raises(BadStore, match="no role provides any: the answer") as refused:
        of_machine(service, clock)
    assert clock.now_s == RoleClock.now_s + ATTEMPTS - 1  # it may not answer yet, so it was asked again
    assert "FI" not in f"{refused.value}{refused.value.__cause__}"


@pytest.mark.parametrize(("vendor", "attempts"), [("Amazon EC2", ATTEMPTS), ("QEMU", 1), (None, 1)])
def test_a_machine_that_is_none_of_amazon_is_asked_once(
    vendor: str | None, attempts: int, service: MetadataService, tmp_path: Path
) -> None:
    file = tmp_path / "sys_vendor"
    if vendor is not None:
        file.write_text(f"{vendor}\n")
    service.status = HTTPStatus.NOT_FOUND
    with pytest.raises(BadStore, match="no role provides any"):
        RoleCredentials({}, metadata=service.endpoint, machine=[file])
    assert service.requests == attempts


def test_a_token_that_cannot_be_sent_is_not_printed(service: MetadataService) -> None:
    given = {FULL_URI: f"{service.endpoint}/container", "AWS_CONTAINER_AUTHORIZATION_TOKEN": "a\nsecret"}
    with pytest.raises(BadStore, match="cannot be sent") as refused:
        RoleCredentials(given, pause=lambda _: None)
    assert "secret" not in str(refused.value).replace("SECRET", "")
    assert refused.value.__cause__ is None


def test_without_roles_the_metadata_is_not_asked(service: MetadataService) -> None:
    service.status = HTTPStatus.INTERNAL_SERVER_ERROR
    with pytest.raises(BadStore, match="AWS_EC2_METADATA_DISABLED is set") as refused:
        CredentialSource("", {METADATA_ENDPOINT: service.endpoint, METADATA_DISABLED: "true"})
    assert "store_credentials_file" in refused.value.hint
