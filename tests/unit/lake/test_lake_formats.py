"""A lake keeps its format, and settings that only replicas have are refused with Iceberg."""

from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from tests.support.lakes.iceberg import iceberg_lake
from tests.support.lakes.lakes import IDENTITY
from tidemark.io.process.lake_config import LakeConfig, LakeTableConfig, SchemaPolicy, Written
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.report import NoLake, OpenedLake
from tidemark.pipeline.landing.formats import OtherFormat, opened_landing
from tidemark.pipeline.landing.iceberg_landing import check_settings
from tidemark.pipeline.landing.landing import LandingParts
from tidemark.pipeline.landing.settings import LakeFormat, Settings
from tidemark.pipeline.landing.settings_check import BadTableSettings

if TYPE_CHECKING:
    from tidemark.io.host.logs import Log
    from tidemark.io.readers.outbox import OutboxReader
    from tidemark.pipeline.landing.capture_port import CapturePort
    from tidemark.pipeline.landing.progress import PipelineProgress


def refusal(lake: Path, lake_format: LakeFormat) -> str:
    """Return why a lake cannot be opened in a format; it is refused before anything else is used."""
    settings = Settings(lake, str(lake), "", "spark", 1, once=True, source={}, lake_format=lake_format)
    with pytest.raises(OtherFormat) as refused:
        opened_landing(
            LandingParts(
                settings,
                cast("OutboxReader", None),
                cast("CapturePort", None),
                cast("PipelineProgress", None),
                cast("Log", None),
                dict,
            )
        )
    return str(refused.value)


def test_a_lake_of_iceberg_tables_is_refused_for_delta_tables(tmp_path: Path) -> None:
    iceberg_lake(tmp_path)
    assert "is a lake of Iceberg tables: use --format iceberg" in refusal(tmp_path, LakeFormat.DELTA)
    with pytest.raises(NoLake, match="is a lake of Iceberg tables") as refused:
        OpenedLake(str(tmp_path))
    assert f"sqlite:///{tmp_path}/catalog.db" in refused.value.hint


def test_a_lake_of_delta_tables_is_refused_for_iceberg_tables(tmp_path: Path) -> None:
    Positions(str(tmp_path), IDENTITY).lake_id()
    assert "is a lake of Delta tables, and --format is iceberg" in refusal(tmp_path, LakeFormat.ICEBERG)


def test_settings_that_only_deltas_tables_have_are_refused_with_iceberg() -> None:
    check_settings(LakeConfig((LakeTableConfig("a.*"), LakeTableConfig("b.*", write=Written.LOG))))
    tables = (
        LakeTableConfig("a.*", write=Written.REPLICA),
        LakeTableConfig("b.*", partition=("day",), schema_policy=SchemaPolicy.FAIL, log_keep_days=3),
    )
    with pytest.raises(BadTableSettings, match="only change logs") as refused:
        check_settings(LakeConfig(tables))
    for fault in ("a.*: write = 'replica'", "b.*: log_keep_days", "b.*: schema_policy", "b.*: partition"):
        assert fault in str(refused.value)
