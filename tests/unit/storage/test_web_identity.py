"""Credentials of a web identity: AWS STS exchanges a token in a file for those of a role."""

from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.support.servers.metadata_service import MetadataService, metadata_service
from tests.support.servers.object_store import object_store
from tidemark.pipeline.storage.credentials import CredentialSource
from tidemark.pipeline.storage.role_credentials import FULL_URI, METADATA_ENDPOINT, RENEW_BEFORE_S, RoleCredentials
from tidemark.pipeline.storage.store_errors import BadStore
from tidemark.pipeline.storage.web_identity import ROLE_ARN, STS_ENDPOINT, TOKEN_FILE

pytestmark = pytest.mark.feature("L07")
ARN = "arn:aws:iam::123456789012:role/pipeline"


@pytest.fixture
def service() -> Iterator[MetadataService]:
    with metadata_service() as made:
        yield made


@pytest.fixture
def token_file(service: MetadataService, tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(f"{service.web_token}\n")
    return file


def variables(endpoint: str, file: Path) -> dict[str, str]:
    return {TOKEN_FILE: str(file), ROLE_ARN: ARN, STS_ENDPOINT: endpoint}


def test_the_answer_of_another_implementation_of_sts_is_read(token_file: Path) -> None:
    with object_store() as store:
        found = RoleCredentials(variables(store.endpoint, token_file)).current()
    assert found.key.startswith("ASIA")
    assert found.secret
    assert found.token


def test_a_web_identity_comes_before_the_role_of_container_and_machine(
    service: MetadataService, token_file: Path
) -> None:
    with metadata_service() as other:
        other.key = "OTHER"
        others = {FULL_URI: f"{other.endpoint}/container?id=7", METADATA_ENDPOINT: other.endpoint}
        source = CredentialSource("", {**others, **variables(service.endpoint, token_file)})
    assert (source.current().key, source.current().token) == ("FIRST", "t")


def test_a_renewal_reads_the_token_again(service: MetadataService, token_file: Path) -> None:
    now_s = 1e9
    service.expires_s = now_s + 3600
    source = RoleCredentials(variables(service.endpoint, token_file), wall_s=lambda: now_s)
    service.key, service.web_token, service.expires_s = "NEXT", "the next token", now_s + 7200
    token_file.write_text("the next token")
    now_s += 3600 - RENEW_BEFORE_S
    assert source.current().key == "NEXT"


def test_a_refused_token_is_named_by_the_code_alone(service: MetadataService, token_file: Path) -> None:
    token_file.write_text("a token that is secret")
    with pytest.raises(BadStore, match=r"answers POST with 400 \(InvalidIdentityToken\)") as refused:
        RoleCredentials(variables(service.endpoint, token_file), pause=lambda _: None)
    assert "secret" not in f"{refused.value}{refused.value.__cause__}"


def test_a_token_is_not_sent_to_sts_without_tls(token_file: Path) -> None:
    with pytest.raises(BadStore, match=f"{STS_ENDPOINT} is neither https:// nor an address of this machine"):
        RoleCredentials(variables("http://sts.example", token_file), pause=lambda _: None)


@pytest.mark.parametrize(("content", "reason"), [(None, "cannot be read: No such file"), (b"\xff", "has no token")])
def test_a_token_that_cannot_be_read_is_named_by_its_variable(
    service: MetadataService, tmp_path: Path, content: bytes | None, reason: str
) -> None:
    file = tmp_path / "other"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BadStore, match=f"the file of {TOKEN_FILE} {reason}"):
        RoleCredentials(variables(service.endpoint, file), pause=lambda _: None)


@pytest.mark.parametrize("text", ["", "<a>", "<a/>", f"<a xmlns='{ARN}'><Credentials/></a>"])
def test_an_answer_without_credentials_is_refused(service: MetadataService, token_file: Path, text: str) -> None:
    service.text = text
    with pytest.raises(BadStore, match="no role provides any: the answer"):
        RoleCredentials(variables(service.endpoint, token_file), pause=lambda _: None)


def test_a_sts_that_is_away_at_a_renewal_leaves_the_present_credentials(
    service: MetadataService, token_file: Path
) -> None:
    now_s = 1e9
    service.expires_s = now_s + 3600
    source = RoleCredentials(variables(service.endpoint, token_file), wall_s=lambda: now_s)
    service.status, now_s = HTTPStatus.SERVICE_UNAVAILABLE, now_s + 3600
    assert (source.current().key, source.fault) == ("FIRST", "127.0.0.1 answers POST with 503")
