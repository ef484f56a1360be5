"""The error classes, each with the reaction of the shell and a hint for the operator.

    TidemarkError
     +-- ConfigError          the operator's input is wrong              exit 2
     +-- Fenced               a newer epoch, or another holder           exit 3
     +-- WalGap               WAL that is needed is gone                 exit 4
     +-- CorruptWal           bytes that no server writes                exit 5
     +-- ConsumerFailed       the consumer raised, hung or died          exit 6
     +-- NodeUnreachable      no connection to the node, for now         exit 7
     +-- NodeUnfit            the node lacks something we need           exit 8
     +-- StateError           the state folder is damaged or full        exit 9
     +-- InternalError        a bug of Tidemark: please report           exit 70

This module also defines the subclasses that two layers need; the error of a single module is defined there.
An automatic reaction (RETRY, FAIL_OVER) is granted by name only; an unknown error means HALT.
"""

from collections.abc import Iterator, Mapping
from enum import Enum, IntEnum


class Disposition(Enum):
    """The shell's reaction to an error; there are only these three."""

    RETRY = "retry"
    FAIL_OVER = "fail over"
    HALT = "halt"


class ExitCode(IntEnum):
    """Exit statuses of all programs of Tidemark (I40); the systemd units decide about restarts by them."""

    SUCCESS = 0
    UNEXPECTED = 1
    CONFIG = 2
    FENCED = 3
    GAP = 4
    CORRUPT_WAL = 5
    CONSUMER_FAILED = 6
    NODE_UNREACHABLE = 7
    NODE_UNFIT = 8
    STATE = 9
    INTERNAL = 70


class TidemarkError(Exception):
    """Root of Tidemark's errors: the message states what happened and where, `hint` what to do."""

    disposition = Disposition.HALT
    exit_code = ExitCode.UNEXPECTED
    hint = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint


def error_names(kind: type[TidemarkError]) -> Iterator[str]:
    """Yield the names by which a class passes to another process: its own, then those of its bases."""
    return (_name(each) for each in kind.__mro__ if issubclass(each, TidemarkError))


def error_classes() -> Mapping[str, type[TidemarkError]]:
    """Return the classes that this process has imported, by name."""
    return {_name(kind): kind for kind in _classes(TidemarkError)}


def restored_error(kind: type[TidemarkError], message: str, *, hint: str | None = None) -> TidemarkError:
    """Return an error of which its class, message and hint are known.

    NB: a class may have another constructor, so that of the root class is called.
    """
    restored = kind.__new__(kind)
    TidemarkError.__init__(restored, message, hint=hint)
    return restored


def _name(kind: type[TidemarkError]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _classes(kind: type[TidemarkError]) -> Iterator[type[TidemarkError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _classes(narrower)


class ConfigError(TidemarkError):
    """Invalid configuration or arguments."""

    exit_code = ExitCode.CONFIG


class InvalidLsn(ConfigError):
    """Text that is not an LSN."""

    hint = "write an LSN as PostgreSQL prints it, for example 0/16B3748"

    def __init__(self, text: str) -> None:
        super().__init__(f"not an LSN: {text!r}")


class Fenced(TidemarkError):
    """Another process has the role's lock, or a newer epoch was taken."""

    exit_code = ExitCode.FENCED


class WalGap(TidemarkError):
    """Required WAL is missing; names the first missing LSN."""

    disposition = Disposition.FAIL_OVER
    exit_code = ExitCode.GAP


class CorruptWal(TidemarkError):
    """Bytes that no server writes; names the LSN and, if there is one, the file."""

    exit_code = ExitCode.CORRUPT_WAL
    lsn: int | None = None  # of the record or page, if the error belongs to one


class ConsumerFailed(TidemarkError):
    """The consumer raised, hung or died."""

    disposition = Disposition.FAIL_OVER
    exit_code = ExitCode.CONSUMER_FAILED
    hint = "unconfirmed changes are delivered again after a restart"


class NodeUnreachable(TidemarkError):
    """No connection to the node, or a broken one; retried with back-off."""

    disposition = Disposition.RETRY
    exit_code = ExitCode.NODE_UNREACHABLE


class NodeUnfit(TidemarkError):
    """The node lacks a required setting, privilege or version."""

    exit_code = ExitCode.NODE_UNFIT


class StateError(TidemarkError):
    """The state folder is damaged, full, or belongs to another capture."""

    exit_code = ExitCode.STATE


class InternalError(TidemarkError):
    """A bug: an internal condition of Tidemark does not hold."""

    exit_code = ExitCode.INTERNAL
    hint = "this is a bug in Tidemark: please report it with the LSN and the log"


OF_APPLICATION = (Exception, SystemExit)
"""What code of an application or a plug-in raises: one that calls `sys.exit` must not end us with its own status."""
