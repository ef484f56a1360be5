"""The pipelines that write to a lake in an object store at present: each renews a separate object while it runs.

    <lake>/_pipeline/alive-<epoch>    the pipeline that took this epoch; deleted when it ends

An epoch (`lake_epoch`) names the pipeline that came last, whether or not it still runs. A separate thread renews the
object, so that a long batch does not matter. One that was not renewed for `ALIVE_S` is that of a killed pipeline, or of
one on a host that does not reach the store. Times are those of the store.
"""

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event, Thread

from tidemark.pipeline.lake.lake_lock import HOLDER, LakeHolder
from tidemark.pipeline.storage.store_errors import StoreUnavailable
from tidemark.pipeline.storage.stores import store_of
from tidemark.wire.json_form import JsonMismatch

FOLDER = "_pipeline"
RENEW_S = 30.0
RENEW_AGAIN_S = 5.0  # after a request without an answer, which has waited for it
ALIVE_S = 3 * RENEW_S
END_S = 5.0  # how long the end of a pipeline waits for a renewal that was begun
_NAME = "alive-"


@dataclass(frozen=True, slots=True)
class SeenPipeline:
    """A pipeline, and when it was seen last, in seconds since 1970."""

    holder: LakeHolder
    seen_s: float

    def __str__(self) -> str:
        seen = datetime.fromtimestamp(self.seen_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"{self.holder}, seen at {seen}"


class AliveObject:
    """The object of this pipeline, renewed until it is deleted."""

    def __init__(self, root: str, holder: LakeHolder, epoch: int) -> None:
        """Write it, and begin to renew it."""
        self._path = f"{root}/{FOLDER}/{_NAME}{epoch}"
        self._content = HOLDER.write(holder)
        self._ended = Event()
        self._write()
        self._renewing = Thread(target=self._renew, name="tidemark-alive", daemon=True)
        self._renewing.start()

    def _write(self) -> None:
        store_of(self._path).replace(self._path, self._content)

    def _renew(self) -> None:
        wait_s = RENEW_S
        while not self._ended.wait(wait_s):
            try:
                self._write()
                wait_s = RENEW_S
            except StoreUnavailable:  # the pipeline reports it with its own next request
                wait_s = RENEW_AGAIN_S

    def delete(self) -> None:
        """Delete it, if the store answers; otherwise the pipeline counts as running until `ALIVE_S` have passed."""
        self._ended.set()
        self._renewing.join(END_S)
        if self._renewing.is_alive():
            return
        with suppress(StoreUnavailable):
            store_of(self._path).delete([self._path])


def running_pipelines(root: str) -> list[SeenPipeline]:
    """Return the pipelines of the lake that were seen in the last `ALIVE_S` seconds; delete the objects of others."""
    store, found = store_of(root), list[SeenPipeline]()
    try:
        files = [file for file in store.files(f"{root}/{FOLDER}") if file.name.startswith(_NAME)]
    except FileNotFoundError:
        return found
    alive_s = store.now_s() - ALIVE_S if files else 0.0
    for file in files:
        path = f"{root}/{FOLDER}/{file.name}"
        if file.modified_s < alive_s:
            store.delete([path])
            continue
        with suppress(FileNotFoundError, JsonMismatch):  # it ended at this moment
            found.append(SeenPipeline(HOLDER.read(store.read(path)), file.modified_s))
    return found
