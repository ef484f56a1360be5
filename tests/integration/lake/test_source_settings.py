"""Settings of tables that are new to the lake are checked against the catalog of the source."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.captures import Sidecar
from tests.support.servers.postgres import new_cluster
from tidemark.engine.selection import Selection
from tidemark.io.host.log_output import get_log
from tidemark.io.process.lake_config import LakeConfig, LakeTableConfig
from tidemark.io.readers.captured_tables import captured_tables
from tidemark.io.readers.state_capture import StateCapture
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.lsn import Oid
from tidemark.pipeline.landing.settings_check import BadTableSettings, check_source

pytestmark = pytest.mark.feature("L15")
SELECTION = Selection(("shop",), ("public.*",), ("public.secret",), partition_roots=("public.visit",))


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateFolder]:
    with new_cluster(15) as node:
        node.sql("CREATE DATABASE shop")
        for statement in (
            "CREATE TABLE customer (id int PRIMARY KEY, name text, tags text[])",
            "CREATE TABLE secret (id int)",
            "CREATE TABLE event (id int, _deleted boolean)",
            "ALTER TABLE event REPLICA IDENTITY FULL",
            "CREATE SCHEMA other CREATE TABLE hidden (id int)",
            "CREATE TABLE visit (id int, day date) PARTITION BY LIST (day)",
            "CREATE TABLE visit_1 PARTITION OF visit DEFAULT",
            "CREATE TABLE sale (id int, day date) PARTITION BY LIST (day)",
            "CREATE TABLE sale_1 PARTITION OF sale DEFAULT",
        ):
            node.sql(statement, "shop")
        sidecar = Sidecar(node, "shop", tmp_path_factory.mktemp("capture"), copy=True)
        sidecar.init()
        yield sidecar.folder


def test_the_captured_tables_are_those_under_whose_names_changes_are_delivered(state: StateFolder) -> None:
    names = {relation.qualified_name for relation in captured_tables(state, SELECTION).values()}
    assert names == {"public.customer", "public.event", "public.visit", "public.sale_1"}


def check(
    state: StateFolder, *columns: str, pattern: str = "customer", known: tuple[tuple[Oid, Oid], ...] = ()
) -> None:
    config = LakeConfig((LakeTableConfig(pattern, cluster=columns),))
    check_config(state, config, known)


def check_config(state: StateFolder, config: LakeConfig, known: tuple[tuple[Oid, Oid], ...] = ()) -> None:
    with StateStore.open(state) as store:
        check_source(config, StateCapture(store, SELECTION), known, get_log("test"))


def test_a_column_that_a_new_table_does_not_have_is_refused_by_the_name_of_the_setting(state: StateFolder) -> None:
    check(state, "name", "id")
    with pytest.raises(
        BadTableSettings, match=r"public\.customer: cluster names the column town, which it does not have"
    ):
        check(state, "town")
    with pytest.raises(BadTableSettings, match=r"cluster names the column tags, whose type list<.*> has no order"):
        check(state, "tags")
    with pytest.raises(BadTableSettings, match=r"public\.visit: .* which it does not have; it has id, day"):
        check(state, "tags", pattern="visit")


def test_a_new_table_that_does_not_permit_soft_deletes_is_refused(state: StateFolder) -> None:
    config = LakeConfig((LakeTableConfig("*", soft_deletes=True),))
    with pytest.raises(BadTableSettings) as raised:
        check_config(state, config)
    assert str(raised.value) == (
        "public.event: soft_deletes needs a key, and it has none (pattern *); "
        "public.event: soft_deletes adds the column _deleted, which it has (pattern *)"
    )


def test_a_partition_column_that_a_new_table_does_not_permit_is_refused(state: StateFolder) -> None:
    for name, reason in (
        ("town", "partition names the column town, which it does not have; it has id, name, tags"),
        (
            "tags",
            "partition names the column tags, whose type list<item: string> is not an integer, text, boolean or date",
        ),
    ):
        config = LakeConfig((LakeTableConfig("customer", partition=("id", name)),))
        with pytest.raises(BadTableSettings) as raised:
            check_config(state, config)
        assert str(raised.value) == f"public.customer: {reason} (pattern customer)"


def test_a_table_that_the_lake_knows_is_not_checked_against_the_source(state: StateFolder) -> None:
    check(state, "town", known=tuple(captured_tables(state, SELECTION)))


def test_an_unreadable_catalog_history_does_not_prevent_the_start(state: StateFolder, tmp_path: Path) -> None:
    files = [path for path in state.history.iterdir() if path.name.startswith("base-")]
    for path in files:
        path.rename(tmp_path / path.name)
    check(state, "town")
    for path in files:
        (tmp_path / path.name).rename(path)
