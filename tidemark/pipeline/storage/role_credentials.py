"""Temporary credentials that a platform gives to the programs on it by HTTP: of a role that the platform assigned.

The first of these that the environment names is used:

    web identity   a token in a file, for which AWS STS returns credentials (EKS: roles of service accounts)
    container      an address in the environment, with a token for it (Amazon ECS, EKS Pod Identity)
    machine        the instance metadata of Amazon EC2, with a token (IMDSv2); version 1, without a token, is not used

No proxy of the environment is used.
"""

import http.client
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Final
from urllib.parse import quote, urlsplit

from tidemark.pipeline.storage.credential_request import body_of, is_plain, send
from tidemark.pipeline.storage.store_errors import BadStore
from tidemark.pipeline.storage.web_identity import assumed_role, is_web_identity

ANSWER_S: Final = 1.0  # it is on this machine, or one hop away
ATTEMPTS = 3  # at the start, where credentials are expected: a machine that boots may not answer yet
RETRY_S = 10.0  # after a failed renewal
RENEW_BEFORE_S = 300.0  # EC2 has new credentials at least five minutes before the old ones expire
TOKEN_S = 21_600  # how long a token of the metadata is valid; a renewal asks for a new one

FULL_URI, RELATIVE_URI = "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"
_CONTAINER_TOKEN, _CONTAINER_TOKEN_FILE = "AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"
METADATA_ENDPOINT, METADATA_DISABLED = "AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_EC2_METADATA_DISABLED"
_CONTAINER_HOST, _METADATA = "http://169.254.170.2", "http://169.254.169.254"
_ROLE = "/latest/meta-data/iam/security-credentials/"
_MACHINE = tuple(Path("/sys/class/dmi/id") / name for name in ("sys_vendor", "bios_version"))
_AMAZON = "amazon"  # in the first one on machines of EC2 with Nitro, in the second one with Xen


@dataclass(frozen=True, slots=True)
class Credentials:
    """A key pair, and the token of temporary credentials."""

    key: str = field(repr=False)
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)


class RoleCredentials:
    """The credentials of the role of this process, renewed before they expire; used by several threads."""

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        wall_s: Callable[[], float] = time.time,
        pause: Callable[[float], None] = time.sleep,
        metadata: str = _METADATA,
        machine: Sequence[Path] = _MACHINE,
    ) -> None:
        """Fetch them; raise `BadStore` if there are none. `wall_s`: the time, in seconds since 1970.

        `metadata`: the address of the metadata if the environment names none. `machine`: files that name the vendor of
        this machine. Where nothing shows that there are credentials, they are asked for once.
        """
        self._environment, self._wall_s = environment, wall_s
        self._metadata = metadata
        self._lock = Lock()
        self._present = Credentials("", "")
        self._renew_at_s = 0.0
        self.fault = ""  # why the last renewal failed
        is_expected = self._is_expected
        attempts = ATTEMPTS if is_expected or _is_of_amazon(machine) else 1
        for attempt in range(attempts):
            self._renew()
            if not self.fault:
                return
            if attempt < attempts - 1 and is_expected:
                pause(ANSWER_S)
        raise BadStore(
            f"there are no credentials for the object store, and no role provides any: {self.fault}",
            hint="set lake.store_credentials_file, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment",
        )

    @property
    def _is_expected(self) -> bool:
        """Return whether the environment names where the credentials are."""
        is_machine = bool(self._environment.get(METADATA_ENDPOINT)) and not self._is_disabled
        return is_web_identity(self._environment) or self._is_of_container or is_machine

    def current(self) -> Credentials:
        """Return the present credentials. One thread renews them; the others use the present ones meanwhile."""
        if self._wall_s() >= self._renew_at_s and self._lock.acquire(blocking=False):
            try:
                self._renew()
            finally:
                self._lock.release()
        return self._present

    def _renew(self) -> None:
        try:
            answer = self._answer()
            expires = datetime.fromisoformat(_text(answer, "Expiration"))
            key, secret, token = (_text(answer, name) for name in ("AccessKeyId", "SecretAccessKey", "Token"))
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.fault = _reason(error)
            self._renew_at_s = self._wall_s() + RETRY_S
        else:
            self._present, self.fault = Credentials(key, secret, token), ""
            expires_s = (expires if expires.tzinfo else expires.replace(tzinfo=UTC)).timestamp()
            self._renew_at_s = max(expires_s - RENEW_BEFORE_S, self._wall_s() + RETRY_S)

    def _answer(self) -> Mapping[str, object]:
        if is_web_identity(self._environment):
            return assumed_role(self._environment)
        return self._container() if self._is_of_container else self._machine()

    @property
    def _is_of_container(self) -> bool:
        return any(self._environment.get(name) for name in (FULL_URI, RELATIVE_URI))

    def _container(self) -> Mapping[str, object]:
        relative = self._environment.get(RELATIVE_URI, "")
        url = f"{_CONTAINER_HOST}{relative}" if relative else self._environment[FULL_URI]
        if is_plain(url):
            raise ValueError(f"{FULL_URI} is neither https:// nor an address of this machine")
        file = self._environment.get(_CONTAINER_TOKEN_FILE, "")  # is replaced when it is renewed
        token = Path(file).read_text(encoding="utf-8").strip() if file else self._environment.get(_CONTAINER_TOKEN, "")
        parts = urlsplit(url)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        return _object(_asked(url, "GET", target, {"Authorization": token} if token else {}))

    @property
    def _is_disabled(self) -> bool:
        return self._environment.get(METADATA_DISABLED, "").lower() == "true"

    def _machine(self) -> Mapping[str, object]:
        if self._is_disabled:
            raise ValueError(f"{METADATA_DISABLED} is set")
        url = self._environment.get(METADATA_ENDPOINT, "") or self._metadata
        ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)}
        token = {"X-aws-ec2-metadata-token": _asked(url, "PUT", "/latest/api/token", ttl).strip()}
        role = _asked(url, "GET", _ROLE, token).split("\n")[0].strip()
        if not role:
            raise ValueError("this machine has no role")
        return _object(_asked(url, "GET", _ROLE + quote(role), token))


def _is_of_amazon(machine: Sequence[Path]) -> bool:
    for file in machine:
        with suppress(OSError, UnicodeDecodeError):
            if _AMAZON in file.read_text(encoding="utf-8").lower():
                return True
    return False


def _asked(url: str, method: str, target: str, headers: Mapping[str, str]) -> str:
    return body_of(url, method, send(url, method, target, headers, limit_s=ANSWER_S))


def _object(text: str) -> Mapping[str, object]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("the answer is not a JSON object")  # noqa: TRY004 - a wrong answer
    return found


def _text(answer: Mapping[str, object], name: str) -> str:
    value = answer.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"the answer has no {name}")
    return value


def _reason(error: Exception) -> str:
    """Return why there are no credentials, without a text of the answer, which may have secrets."""
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError | http.client.HTTPException):
        return "the answer cannot be read"
    if isinstance(error, TimeoutError):
        return "the server of credentials does not answer"
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)
