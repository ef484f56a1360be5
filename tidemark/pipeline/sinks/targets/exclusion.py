"""Logs and replicas that the configuration excludes (`write` in `[[lake.tables]]`).

An excluded log or replica stays as it is, and the outbox keeps nothing for it. If the setting changes, it has a gap: it
then counts as diverged, until a new copy of the source's rows begins.
"""

from dataclasses import replace

from tidemark.io.process.lake_config import LakeTableConfig, Written
from tidemark.pipeline.lake.faults import Fault, FaultKind
from tidemark.pipeline.sinks.targets.targets import Outcome, TargetTable


def excluded(target: TargetTable, name: str, settings: LakeTableConfig) -> Outcome | None:
    """Return the result for a log or replica that `settings` exclude; None if it is written."""
    if settings.write in (Written.BOTH, Written(name)):
        return None
    fault = target.known.fault
    if fault is None or fault.kind is not FaultKind.EXCLUDED:
        reason = f"write = '{settings.write.value}' in [[lake.tables]], pattern {settings.pattern}"
        fault = Fault(FaultKind.EXCLUDED, reason, target.applied.position if fault is None else fault.position)
    return Outcome(replace(target.known, fault=fault), target.applied)


def included(target: TargetTable) -> TargetTable:
    """Return a target that is written again, or for the first time, as one that needs a new copy."""
    fault = target.known.fault
    if fault is None or fault.kind is not FaultKind.EXCLUDED:
        return target
    diverged = Fault(FaultKind.DIVERGED, f"it was not written for a while ({fault.reason})", fault.position)
    return replace(target, known=replace(target.known, fault=diverged))
