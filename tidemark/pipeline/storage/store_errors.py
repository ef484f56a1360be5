"""The errors of an object store, and how they are recognized in the texts of delta-rs and Arrow."""

import re

from tidemark.io.process.config_reference import CONFIG_REFERENCE
from tidemark.model.errors import ConfigError, ConsumerFailed, Disposition
from tidemark.pipeline.failures import first_reason

REASON_MAX = 300  # characters of a foreign error message
# The texts of the Rust crate object_store, which delta-rs and obstore use.
_OF_STORE = re.compile(
    r"Generic S3 error|Error performing (?:GET|PUT|POST|HEAD|DELETE|list)|lacked the necessary privileges|"
    r"lacked valid authentication|NoSuchBucket"
)
_NOT_FOUND = re.compile(r"NoSuchKey|404 Not Found|not found:", re.IGNORECASE)
_NEEDS_NO_FILE = re.compile(r"performing (?:list|PUT|POST)|list request")  # no answer to these is a missing file
_BUCKET = "NoSuchBucket"
_REFUSALS = (
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
    "AccessDenied",
    "403 Forbidden",
)
_CLOCK = "RequestTimeTooSkewed"


class StoreUnavailable(ConsumerFailed):
    """The object store of the lake does not answer, or refuses this process; a pipeline waits, a command ends."""

    disposition = Disposition.RETRY
    hint = "check the bucket, lake.store_endpoint, the network and the credentials"


class BadStore(ConfigError):
    """Unusable options of an object store."""

    hint = f"see lake.store_endpoint, store_region, store_allow_http and store_credentials_file in {CONFIG_REFERENCE}"


def store_failure(error: BaseException) -> str:
    """Return the reason if an error is one of the store, but not of a single missing file; "" for other errors."""
    text = str(error)
    is_of_file = _NOT_FOUND.search(text) and _BUCKET not in text and not _NEEDS_NO_FILE.search(text)
    if not _OF_STORE.search(text) or is_of_file:
        return ""
    return unavailable_reason(text)


def unavailable_reason(text: str) -> str:
    """Return what the text of an error of the store means, with its own words."""
    reason = first_reason(text).partition(" <?xml")[0][:REASON_MAX]
    if _BUCKET in text:
        return f"the bucket does not exist: {reason}"
    if _CLOCK in text:
        return f"the clocks of this host and of the store differ too much for signed requests: {reason}"
    if any(word in text for word in _REFUSALS):
        return f"the store refuses the credentials: {reason}"
    return f"the store does not answer as it should: {reason}"
