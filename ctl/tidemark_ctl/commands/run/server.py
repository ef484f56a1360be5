"""`cdcctl run server`: replaces this process by the outbox server."""

from pathlib import Path

import click

from tidemark_ctl.commands.run.daemon import become
from tidemark_ctl.options import config_option, state_option


@click.command()
@state_option
@config_option
@click.option("--listen", help="HOST:PORT in place of server.listen; without both, a unix socket in the state folder.")
@click.option("--insecure-loopback", is_flag=True, help="Serve a port of a loopback address without TLS.")
def server(*, state: Path, config: Path | None, listen: str | None, insecure_loopback: bool) -> None:
    """Run the process that serves the outbox to readers on this host and on others.

    A TCP port requires TLS (server.tls_certificate, server.tls_key), and the token in STATE/server.token.
    """
    given = ["--listen", listen] if listen is not None else []
    become("tidemark.runtime.serving", state, config, *given, *(["--insecure-loopback"] if insecure_loopback else []))
