"""Which values of `--master` and `--driver-memory` are refused before Spark starts."""

import pytest

from tidemark.model.errors import ConfigError
from tidemark.pipeline.driver.master_url import BadMaster, check_driver_memory, check_master

HADOOP = {"HADOOP_CONF_DIR": "/etc/hadoop"}


@pytest.mark.parametrize(
    "master",
    [
        *("local", "local[*]", "local[2]", "local[2,4]", "local[* , 4]", "local-cluster[2,1,1024]", "yarn"),
        *("spark://h:7077", "spark://h:7077,other.example:7078", "spark://[::1]:7077", "k8s://https://h:6443"),
    ],
)
def test_a_master_that_spark_accepts_is_accepted(master: str) -> None:
    check_master(master, HADOOP)


@pytest.mark.parametrize(
    "master", ["", "foo", "local[x]", "local[0]", "local[]", "spark:/x", "spark://h", "k8s://", "mesos://h:1", "Local"]
)
def test_a_master_that_spark_does_not_know_is_refused(master: str) -> None:
    with pytest.raises(BadMaster, match=r"--master .*is not a master of Spark"):
        check_master(master, HADOOP)


def test_yarn_requires_the_configuration_of_hadoop() -> None:
    with pytest.raises(BadMaster, match="requires HADOOP_CONF_DIR or YARN_CONF_DIR"):
        check_master("yarn", {"YARN_CONF_DIR": ""})


def test_a_heap_has_a_number_and_a_unit() -> None:
    for size in ("1g", "512M", "2048m"):
        check_driver_memory(size)
    for size in ("", "1", "1gb", "g", "0g", "1 g", "-1g"):
        with pytest.raises(ConfigError, match="--driver-memory"):
            check_driver_memory(size)
