"""The command line of the pipeline."""

import argparse
from collections.abc import Sequence

from tidemark.io.host.python_program import program_name
from tidemark.pipeline.delta_log.log_cleanup import KEEP_S
from tidemark.pipeline.driver.runner import BATCH_BYTES
from tidemark.pipeline.landing.settings import LakeFormat

READER = "spark"
METRICS_HOST = "127.0.0.1"


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's arguments."""
    return _parser().parse_args(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program_name("tidemark.pipeline"),
        description="Write the changes of the outbox into the tables of the lake.",
        allow_abbrev=False,
    )
    parser.add_argument("--state", help="the state folder of the capture")
    parser.add_argument("--server", metavar="ADDRESS", help="in place of --state: the outbox server of the capture")
    parser.add_argument("--token-file", help="the token of the server: a copy of STATE/server.token of its host")
    parser.add_argument("--tls-roots", help="the certificate (PEM) that signed the server's")
    parser.add_argument(
        "--runner-folder",
        help="with --server: folder of the pipeline's own files, mode 0700, created if missing (default: "
        "~/.local/state/tidemark/CAPTURE-SYSTEM)",
    )
    parser.add_argument("--lake", required=True, help="folder of the tables, created if missing, or s3://BUCKET/PREFIX")
    parser.add_argument(
        "--format",
        choices=[one.value for one in LakeFormat],
        default=LakeFormat.DELTA.value,
        help="format of the tables; iceberg: change logs without replicas (default: %(default)s)",
    )
    parser.add_argument("--config", help="the configuration of the capture, of which [lake] is used")
    parser.add_argument("--store-endpoint", help="URL of the object store (default: lake.store_endpoint)")
    parser.add_argument("--store-region", help="region of the bucket (default: lake.store_region)")
    parser.add_argument(
        "--store-allow-http",
        action="store_true",
        help="permit http:// to another host than a loopback address (default: lake.store_allow_http)",
    )
    parser.add_argument(
        "--store-credentials-file",
        help="file with the credentials of the object store, mode 0600 (default: lake.store_credentials_file)",
    )
    parser.add_argument("--master", default="local[*]", help="Spark's master (default: %(default)s)")
    parser.add_argument(
        "--checkpoint",
        help="folder of Spark's checkpoint, which may be deleted (default: spark/ in the state or runner folder)",
    )
    parser.add_argument("--reader", default=READER, help="name of this reader of the outbox (default: %(default)s)")
    parser.add_argument(
        "--batch-bytes", type=_byte_count, default=BATCH_BYTES, help="size limit of a batch (default: %(default)s)"
    )
    parser.add_argument("--driver-memory", default="1g", help="heap of Spark's driver (default: %(default)s)")
    parser.add_argument(
        "--conf",
        type=_spark_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Spark, as of spark-submit; can be given repeatedly",
    )
    parser.add_argument(
        "--log-keep-s",
        type=_second_count,
        default=KEEP_S,
        help="how long an older version of a table can be read, in seconds (default: %(default)s)",
    )
    parser.add_argument(
        "--paused-bytes",
        type=_byte_count,
        help="how much of the outbox is kept for paused tables; beyond it they need a new copy (default, and at most: "
        "a quarter of the outbox)",
    )
    parser.add_argument("--shared-with-group", action="store_true", help="the state folder is shared with a group")
    parser.add_argument(
        "--once", action="store_true", help="stop when the current content of the outbox is in the lake"
    )
    parser.add_argument("--metrics-host", default=METRICS_HOST, help="(default: %(default)s)")
    parser.add_argument(
        "--metrics-port",
        type=_port,
        help="serve Prometheus metrics on this port; 0 chooses one (default: the port that init assigned to the "
        f"reader {READER})",
    )
    parser.add_argument("--no-metrics", action="store_true", help="serve no metrics")
    parser.add_argument("--log-format", choices=("json", "console"), default="json")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    return parser


def _spark_setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.startswith("spark."):
        raise argparse.ArgumentTypeError("must be a setting of Spark: spark.NAME=VALUE")
    return name, value


def _byte_count(text: str) -> int:
    return _bounded(text, 1, 1 << 40)


def _second_count(text: str) -> int:
    return _bounded(text, 60, 366 * 86_400)


def _port(text: str) -> int:
    return _bounded(text, 0, 65_535)


def _bounded(text: str, least: int, most: int) -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"must be a number from {least} to {most}")
    return int(text)
