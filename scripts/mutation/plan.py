"""The mutated modules, and the tests that must detect the mutants: fast tests first, then those with servers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MutationTests:
    """The tests of one module."""

    fast: tuple[str, ...]  # in one process, without a server
    slow: tuple[str, ...] = ()  # run if the fast ones pass
    interpreted: bool = False  # a kernel: tested in a tree without compiled modules


_SMALL_TRANSACTIONS = (
    "tests/unit/decoder/test_small_transactions.py",
    "tests/unit/decoder/test_small_savepoints.py",
    "tests/unit/decoder/test_small_transactions_chosen.py",
    "tests/unit/decoder/test_unselected_rows.py",
    "tests/unit/decoder/test_many_tables.py",
    "tests/property/decoder/test_savepoints.py",
    "tests/property/decoder/test_skimming.py",
)
_MERGE = (
    "tests/unit/merge/test_key_ranges.py",
    "tests/unit/merge/test_file_statistics.py",
    "tests/unit/merge/test_data_files.py",
    "tests/unit/merge/test_clustering.py",
    "tests/unit/merge/test_merging.py",
)
_MERGE_EXAMPLES = ("tests/property/lake/test_merging.py",)
_STATE = ("tests/integration/state/test_state_store.py", "tests/integration/state/test_state_transaction.py")
_POSITIONS = MutationTests(("tests/unit/lake/test_positions.py",), ("tests/integration/lake/test_sinks.py",))
_REPLICA = MutationTests(
    ("tests/unit/lake/test_replica.py", "tests/unit/lake/test_replica_partitions.py"),
    ("tests/integration/lake/test_sinks.py",),
)

PLANS = {
    "tidemark/model/snapshot.py": MutationTests(
        ("tests/property/state/test_snapshot.py",),
        ("tests/integration/capture/test_node.py", "tests/integration/first_copy/test_first_copy.py"),
    ),
    "tidemark/model/position.py": MutationTests(("tests/unit/engine", "tests/property/wire/test_markers.py")),
    "tidemark/engine/handover.py": MutationTests(("tests/unit/engine/test_handover.py", "tests/property/handover")),
    "tidemark/engine/base_schedule.py": MutationTests(("tests/unit/engine/test_base_schedule.py",)),
    "tidemark/engine/archive_wait.py": MutationTests(("tests/unit/engine/test_archive_wait.py",)),
    "tidemark/engine/incarnations.py": MutationTests(("tests/property/handover/test_incarnations.py",)),
    "tidemark/engine/folder_identity.py": MutationTests(("tests/unit/engine/test_folder_identity.py",)),
    "tidemark/engine/progress.py": MutationTests(("tests/unit/engine/test_progress_retry_selection.py",)),
    "tidemark/engine/marking.py": MutationTests(("tests/unit/engine/test_marking.py",)),
    "tidemark/engine/dead_branch.py": MutationTests(("tests/unit/engine/test_dead_branch.py",)),
    "tidemark/engine/ring.py": MutationTests(("tests/property/state/test_ring.py",)),
    "tidemark/decode/transactions/pending_rows.py": MutationTests(
        ("tests/property/decoder/test_pending_rows.py",), _SMALL_TRANSACTIONS, interpreted=True
    ),
    "tidemark/decode/transactions/pending_children.py": MutationTests(
        ("tests/property/decoder/test_pending_children.py",), _SMALL_TRANSACTIONS, interpreted=True
    ),
    "tidemark/decode/transactions/held_chunks.py": MutationTests(
        ("tests/property/decoder/test_held_chunks.py", "tests/unit/decoder/test_held_chunks.py"),
        ("tests/unit/decoder/test_rows.py",),
        interpreted=True,
    ),
    "tidemark/decode/transactions/xid_states.py": MutationTests(
        ("tests/unit/decoder/test_small_savepoints.py",), _SMALL_TRANSACTIONS, interpreted=True
    ),
    "tidemark/decode/transactions/reorder_buffer/committed_run.py": MutationTests(
        ("tests/unit/decoder/test_committed_run.py",)
    ),
    "tidemark/decode/groups/stream_order.py": MutationTests(("tests/unit/decoder/test_stream_order.py",)),
    "tidemark/wire/marker.py": MutationTests(("tests/property/wire/test_markers.py", "tests/property/bytes")),
    "tidemark/io/archive/trimming.py": MutationTests(
        ("tests/unit/archive/test_trimming.py", "tests/integration/archive/test_trimming.py")
    ),
    "tidemark/io/archive/hole_ledger.py": MutationTests(
        ("tests/property/archive/test_hole_ledger.py",), ("tests/faults/test_archive_command.py",)
    ),
    "tidemark/io/state/switching.py": MutationTests(("tests/integration/failover/test_switching.py",)),
    "tidemark/io/state/stored_values.py": MutationTests(_STATE),
    "tidemark/io/state/outbox_transaction.py": MutationTests(_STATE),
    "tidemark/io/state/state_transaction.py": MutationTests(_STATE),
    "tidemark/runtime/delivery/delivery.py": MutationTests(
        ("tests/integration/delivery/test_outbox_target.py", "tests/integration/delivery/test_idle_time.py")
    ),
    "tidemark/runtime/delivery/confirming.py": MutationTests(("tests/unit/delivery/test_confirming.py",)),
    "tidemark/runtime/daemon/marker_reading.py": MutationTests(("tests/integration/failover/test_marker_reading.py",)),
    "tidemark/runtime/first_copy/copies.py": MutationTests(("tests/integration/first_copy/test_copies_shown.py",)),
    "tidemark/pipeline/merge/compaction.py": MutationTests(
        ("tests/unit/merge/test_compaction_keys.py", "tests/unit/merge/test_compaction.py")
    ),
    "tidemark/pipeline/merge/keys.py": MutationTests(_MERGE, _MERGE_EXAMPLES),
    "tidemark/pipeline/merge/key_ranges.py": MutationTests(_MERGE, _MERGE_EXAMPLES),
    "tidemark/pipeline/merge/touched_files.py": MutationTests(
        ("tests/unit/merge/test_touched_files.py", *_MERGE), _MERGE_EXAMPLES
    ),
    "tidemark/pipeline/merge/merging.py": MutationTests(_MERGE, _MERGE_EXAMPLES),
    "tidemark/pipeline/merge/data_files.py": MutationTests(_MERGE, _MERGE_EXAMPLES),
    "tidemark/pipeline/lake/files/file_statistics.py": MutationTests(_MERGE, _MERGE_EXAMPLES),
    "tidemark/pipeline/merge/clustering.py": MutationTests(_MERGE, _MERGE_EXAMPLES),
    "tidemark/pipeline/lake/positions/positions.py": _POSITIONS,
    "tidemark/pipeline/lake/positions/position_rows.py": _POSITIONS,
    "tidemark/pipeline/lake/positions/table_position.py": _POSITIONS,
    "tidemark/pipeline/sinks/replica/replica.py": _REPLICA,
    "tidemark/pipeline/sinks/replica/replica_events.py": _REPLICA,
    "tidemark/pipeline/sinks/replica/replica_layout.py": _REPLICA,
    "tidemark/pipeline/delta_log/lineage.py": MutationTests(
        ("tests/unit/delta_log/test_lineage.py",), ("tests/integration/lake/test_lake_changes.py",)
    ),
    "tidemark/pipeline/delta_log/commits.py": MutationTests(
        ("tests/unit/delta_log/test_commits.py",), ("tests/integration/lake/test_lake_changes.py",)
    ),
    "tidemark/pipeline/delta_log/log_cleanup.py": MutationTests(
        ("tests/integration/lake/test_log_listings.py",), ("tests/integration/lake/test_log_cleanup.py",)
    ),
    "tidemark/pipeline/sinks/targets/targets.py": MutationTests(
        ("tests/unit/pipeline/test_targets.py",),
        (
            "tests/integration/lake_faults/test_log_breaks.py",
            "tests/integration/lake/test_lake_changes.py",
            "tests/integration/lake_faults/test_lake_damage.py",
            "tests/integration/lake_faults/test_lake_damage_scan.py",
            "tests/integration/lake/test_lake_quiet.py",
        ),
    ),
    "tidemark/runtime/daemon/fencing.py": MutationTests(("tests/integration/state/test_fence_steps.py",)),
    "archiver/tidemark_archiver/archive_command.py": MutationTests(
        ("tests/faults/test_archive_program.py",), ("tests/faults/test_archive_command.py",)
    ),
}
