"""Batches built with each kernel interpreted."""

from tests.support.oracles.twins import interpreted

deforming = interpreted("tidemark.decode.datum.deforming")
columns, texts = (interpreted(f"tidemark.decode.arrow.{name}") for name in ("columns", "text_columns"))
body = interpreted("tidemark.decode.arrow.batch_body", stand_in={"tidemark.decode.datum.deforming": deforming})
put = interpreted(
    "tidemark.decode.arrow.batch_columns",
    stand_in={
        "tidemark.decode.arrow.batch_body": body,
        "tidemark.decode.datum.deforming": deforming,
        "tidemark.decode.arrow.columns": columns,
        "tidemark.decode.arrow.text_columns": texts,
    },
)
small = interpreted(
    "tidemark.decode.arrow.small_batch",
    stand_in={
        "tidemark.decode.arrow.batch_body": body,
        "tidemark.decode.arrow.batch_columns": put,
        "tidemark.decode.datum.deforming": deforming,
    },
)
_shapes = interpreted("tidemark.decode.arrow.batch_shapes", stand_in={"tidemark.decode.arrow.small_batch": small})
_values = interpreted("tidemark.decode.arrow.column_values", stand_in={"tidemark.decode.arrow.batch_columns": put})
batches = interpreted(
    "tidemark.decode.arrow.batches",
    stand_in={
        "tidemark.decode.arrow.batch_shapes": _shapes,
        "tidemark.decode.arrow.column_values": _values,
        "tidemark.decode.arrow.small_batch": small,
    },
)
for _module in (_values, batches):
    for _name, _kernel in (
        ("batch_body", body),
        ("batch_columns", put),
        ("deforming", deforming),
        ("text_columns", texts),
    ):
        if hasattr(_module, _name):
            setattr(_module, _name, _kernel)
