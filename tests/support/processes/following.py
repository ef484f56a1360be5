"""Two hosts of one cluster with one key: a sidecar delivers at the primary, and another follows at the standby."""

import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.support.processes.captures import Sidecar
from tests.support.servers.postgres import Cluster, StopMode
from tests.support.servers.standby import promote
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_views import StateView
from tidemark.model.change import GroupItem
from tidemark.model.mode import Stage
from tidemark.model.position import NO_SEQUENCE

OFTEN = {"TIDEMARK_MARKERS__CONFIRM_S": "0.2", "TIDEMARK_RETRY__FIRST_S": "0.1", "TIDEMARK_RETRY__MAX_S": "0.5"}


class FollowingSidecar(Sidecar):
    """A sidecar with `standby.follow`: its node determines its stage."""

    def __init__(
        self, cluster: Cluster, root: Path, key: Path, *, lake: Path | None = None, copy: bool = False, **options: str
    ) -> None:
        following = {
            **OFTEN,
            "TIDEMARK_STANDBY__FOLLOW": "true",
            "TIDEMARK_STANDBY__LAKE": str(lake or ""),
            "TIDEMARK_MARKERS__KEY_FILE": str(key),
        }
        root.mkdir()
        super().__init__(cluster, "postgres", root, copy=copy, **{**following, **options})
        config = self.config
        self.config = replace(
            config,
            standby=replace(config.standby, follow=True, lake=str(lake or "")),
            markers=replace(config.markers, key_file=str(key)),
        )

    @property
    def view(self) -> StateView:
        """The values of the state."""
        with StateStore.open(self.folder) as store:
            return store.view()

    def wait_for_stage(self, stage: Stage) -> None:
        """Wait until the state is in that stage, and the sidecar acts on it: it follows, or has found its start."""
        follows = stage is Stage.FOLLOWER
        self.wait_until(
            lambda: (view := self.view).stage is stage and (view.followed is not None) is follows, stage.value
        )

    def wait_for_start(self) -> None:
        """Wait until this follower has a start from a marker."""
        self.wait_until(self._has_start, "a marker of the deliverer")

    def _has_start(self) -> bool:
        followed = self.view.followed
        return followed is not None and followed.has_start and followed.leader is not None


class Hosts:
    """Both hosts; the first one is lost with all its data."""

    def __init__(
        self,
        primary: Cluster,
        standby: Cluster,
        root: Path,
        *,
        lake: Path | None = None,
        copy: bool = False,
        options: Mapping[str, str] = {},
    ) -> None:
        self.primary = primary
        self.standby = standby
        key = root / "marker.key"
        key.write_text(secrets.token_hex(32))
        key.chmod(0o600)
        self.deliverer = FollowingSidecar(primary, root / "one", key, lake=lake, copy=copy, **options)
        self.follower = FollowingSidecar(standby, root / "two", key, lake=lake, copy=copy, **options)
        self.follower.written_to = primary

    def start(self) -> None:
        """Create both states and start both sidecars."""
        for sidecar in (self.deliverer, self.follower):
            sidecar.init()
            sidecar.start()

    def delivered(self) -> list[GroupItem]:
        """Return the content of the first host's outbox."""
        with OutboxReader.open(self.deliverer.folder) as reader:
            return list(Sidecar.items(reader, NO_SEQUENCE, reader.head()))

    def lose_primary(self) -> None:
        """End the primary's host at once: server, sidecar, state folder."""
        self.primary_dies()
        self.first_state_is_lost()

    def primary_dies(self) -> None:
        """End the primary and its sidecar."""
        self.primary.stop(StopMode.KILL)
        self.deliverer.kill()

    def first_state_is_lost(self) -> None:
        """Remove the state of the primary's sidecar: no process reads it any more."""
        shutil.rmtree(self.deliverer.folder.root)

    def promote(self) -> None:
        """Make the standby the primary."""
        promote(self.standby)
        self.follower.written_to = self.standby

    def close(self) -> None:
        """Stop every process that still runs."""
        self.deliverer.close()
        self.follower.close()


@contextmanager
def two_hosts(
    primary: Cluster,
    standby: Cluster,
    root: Path,
    *,
    lake: Path | None = None,
    copy: bool = False,
    start: bool = True,
    options: Mapping[str, str] = {},
) -> Iterator[Hosts]:
    """Run a sidecar at each node; the second one follows."""
    hosts = Hosts(primary, standby, root, lake=lake, copy=copy, options=options)
    try:
        if start:
            hosts.start()
        yield hosts
    finally:
        hosts.close()
