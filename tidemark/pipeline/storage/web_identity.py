"""Temporary credentials for a token of another identity provider, by AWS STS (`AssumeRoleWithWebIdentity`).

This is how a pod of EKS gets the role of its service account: the token is a file that the kubelet replaces, so it is
read for each request. The request is not signed: the token is its only secret, and therefore crosses a network by TLS.
"""

import re
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import urlencode, urlsplit
from xml.etree import ElementTree as ET

from tidemark.pipeline.storage.credential_request import is_plain, refusal, send

TOKEN_FILE, ROLE_ARN, SESSION = "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME"
STS_ENDPOINT, ANY_ENDPOINT = "AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL"
ANSWER_S: Final = 5.0  # a service of the region, not of this machine
TOKEN_BYTES_MAX = 1 << 16  # STS accepts 20,000
_VERSION = "2011-06-15"  # of the API of STS
_NAMESPACE = {"sts": "https://sts.amazonaws.com/doc/2011-06-15/"}
_FIELDS = {  # of an answer, and their names in an answer of the metadata
    "AccessKeyId": "AccessKeyId",
    "SecretAccessKey": "SecretAccessKey",
    "SessionToken": "Token",
    "Expiration": "Expiration",
}
_CODE = re.compile(r"<Code>([A-Za-z.]{1,64})</Code>")


def is_web_identity(environment: Mapping[str, str]) -> bool:
    """Return whether the environment names a token and the role that it is for."""
    return bool(environment.get(TOKEN_FILE) and environment.get(ROLE_ARN))


def assumed_role(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the credentials of the role: `AccessKeyId`, `SecretAccessKey`, `Token`, `Expiration`.

    Raise `OSError`, `HTTPException` or `ValueError` if there are none; no text of these has the token.
    """
    url = _endpoint(environment)
    if is_plain(url):
        raise ValueError(f"{STS_ENDPOINT} is neither https:// nor an address of this machine")
    form = {
        "Action": "AssumeRoleWithWebIdentity",
        "Version": _VERSION,
        "RoleArn": environment[ROLE_ARN],
        "RoleSessionName": environment.get(SESSION) or "tidemark",
        "WebIdentityToken": _token(environment[TOKEN_FILE]),
    }
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "text/xml"}
    path = urlsplit(url).path or "/"
    answer = send(url, "POST", path, headers, limit_s=ANSWER_S, body=urlencode(form))
    if answer.status != HTTPStatus.OK:
        code = _CODE.search(answer.body)
        raise ValueError(refusal(url, "POST", answer) + (f" ({code[1]})" if code else ""))
    return _credentials(answer.body)


def _endpoint(environment: Mapping[str, str]) -> str:
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or ""
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    own = f"https://sts.{region}.{domain}" if region else f"https://sts.{domain}"
    return environment.get(STS_ENDPOINT) or environment.get(ANY_ENDPOINT) or own


def _token(file: str) -> str:
    try:
        with Path(file).open(encoding="ascii") as opened:
            return opened.read(TOKEN_BYTES_MAX).strip()
    except OSError as error:
        raise ValueError(f"the file of {TOKEN_FILE} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:  # NB: its text has a byte of the token
        raise ValueError(f"the file of {TOKEN_FILE} has no token") from None


def _credentials(body: str) -> Mapping[str, str]:
    try:
        root = ET.fromstring(body)  # noqa: S314 - bounded, of STS, by TLS
    except ET.ParseError:  # NB: its text may have a part of the answer
        raise ValueError("the answer cannot be read") from None
    found = root.find(".//sts:Credentials", _NAMESPACE)
    if found is None:
        return {}
    return {name: found.findtext(f"sts:{field}", "", _NAMESPACE) for field, name in _FIELDS.items()}
