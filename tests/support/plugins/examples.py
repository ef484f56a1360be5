"""The plug-ins of the packages in `examples/`, which are not installed, for tests that call them."""

from tidemark_email_domain import EmailDomain
from tidemark_sqlite import SqliteConsumer

__all__ = ["EmailDomain", "SqliteConsumer"]
