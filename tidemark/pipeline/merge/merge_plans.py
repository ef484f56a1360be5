"""Plans of merges: which rows of which files are removed or replaced, by key or by whole rows."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemark.pipeline.merge.compaction import Compacted
from tidemark.pipeline.merge.data_files import laid_out
from tidemark.pipeline.merge.key_ranges import Flags, SoughtKeys
from tidemark.pipeline.merge.keys import Indexes, comparable_keys
from tidemark.pipeline.merge.touched_files import Hit, KeyedFiles
from tidemark.pipeline.merge.whole_rows import NetRows, equal_rows, limited


@dataclass(frozen=True, slots=True, eq=False)
class MergePlan:
    """The rows to put, and the rows of each file that are removed or replaced by one of them."""

    puts: pa.Table
    hits: dict[int, Hit]  # `sought` is the index of the row that replaces another; from `puts.num_rows` on, none does
    inside: Mapping[int, Indexes]  # by file: the rows to put that fit between its bounds
    sought: SoughtKeys  # the rows to put come first
    kept: Mapping[str, Flags]  # by column: the rows to put whose value there is that of the replaced row


def plan_by_key(files: KeyedFiles, compacted: Compacted, schema: pa.Schema) -> MergePlan:
    """Plan the merge of a compacted run: a put replaces the row with its key."""
    puts = laid_out(compacted.puts, schema)
    removed = laid_out(compacted.removed, pa.schema([schema.field(name) for name in files.key]))
    keys = pa.concat_tables([puts.select(files.key), removed])
    sought = SoughtKeys(comparable_keys(keys, files.key))
    inside = files.ranges.inside(sought)
    kept = {name: np.asarray(flags, np.bool_) for name, flags in compacted.kept.items()}
    return MergePlan(puts, files.touched(sought, inside), inside, sought, kept)


def plan_by_row(files: KeyedFiles, net: NetRows, schema: pa.Schema) -> MergePlan:
    """Plan the removal of one row of the replica for each one that the run lost, and the insertion of new rows."""
    rows = laid_out(net.rows, schema)
    found = equal_rows(files, rows, net.lost)
    removed, added = net.after_search(found)
    puts = rows.take(pa.array(np.repeat(np.arange(rows.num_rows), added)))
    hits = {file: Hit(hit.rows, hit.sought + puts.num_rows) for file, hit in limited(found, removed).items()}
    sought = SoughtKeys(comparable_keys(puts, files.key))
    return MergePlan(puts, hits, files.ranges.inside(sought), sought, {})
