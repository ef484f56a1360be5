"""The format `tidemark.archive` on the Spark of all tests: its executors decode what the serial decoder prints."""

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_tidemark_archive import DefaultSource
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.servers.archived_table import record_table

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("forked")]


@pytest.mark.feature("N07")
def test_spark_reads_the_changes_of_a_table_from_an_archive(spark: SparkSession, tmp_path: Path) -> None:
    folders = record_table(tmp_path)
    spark.dataSource.register(DefaultSource)
    query = spark.read.format("tidemark.archive").options(**folders, table="account")
    rows = query.load()
    assert rows.rdd.getNumPartitions() >= 4
    assert dict(rows.dtypes)["note"] == "string"
    words = ("--archive", folders["archive"], "--table", "account", "--message", "none")
    expected = []
    for line in succeeded(cdcctl("decode", "--state", folders["state"], *words)).lines:
        printed = json.loads(line)
        if printed["op"] in "iud":
            values = printed.get("after") or printed["before"]
            expected.append((printed["op"], printed["xid"], values["id"], values["note"]))
    found = [tuple(row) for row in rows.select("_op", "_xid", "id", "note").collect()]
    assert found == expected  # also in this order
    assert len(expected) > 200
    assert rows.filter("_op = 'd'").count() == sum(op == "d" for op, *_ in expected)
    with pytest.raises(PySparkException, match="the columns are id, note"):
        query.schema("id bigint").load().collect()
