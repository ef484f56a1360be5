"""A batch whose transforms run where its handler is called: in a thread of the pool."""

from collections import deque
from collections.abc import Callable

from tidemark.engine.batch import Batch
from tidemark.transforms.plan import TransformPlan


class PlannedBatch:
    """A batch of the stream with the plan of its table. It is transformed once, also if the handler is called again."""

    def __init__(self, batch: Batch, plan: TransformPlan) -> None:
        self._batch = batch
        self._plan = plan
        self._unhandled: deque[Batch] | None = None

    def __len__(self) -> int:
        return len(self._batch)

    def handle(self, handler: Callable[[Batch], None]) -> None:
        """Call the handler with each batch that this one becomes; after an error, continue with the one that failed."""
        if self._unhandled is None:
            self._unhandled = deque(self._plan.apply(self._batch))
        while self._unhandled:
            handler(self._unhandled[0])
            self._unhandled.popleft()
