"""The way to batches with each of its kernels interpreted."""

from tests.support.twins import interpreted

places, columns, texts = (interpreted(f"tidemark.decode.{name}") for name in ("places", "columns", "text_columns"))
body = interpreted("tidemark.decode.batch_body", stand_in={"tidemark.decode.places": places})
put = interpreted(
    "tidemark.decode.batch_columns",
    stand_in={
        "tidemark.decode.batch_body": body,
        "tidemark.decode.places": places,
        "tidemark.decode.columns": columns,
        "tidemark.decode.text_columns": texts,
    },
)
_values = interpreted("tidemark.decode.column_values", stand_in={"tidemark.decode.batch_columns": put})
batches = interpreted("tidemark.decode.batches", stand_in={"tidemark.decode.column_values": _values})
for _module in (_values, batches):
    for _name, _kernel in (("batch_body", body), ("batch_columns", put), ("places", places), ("text_columns", texts)):
        if hasattr(_module, _name):
            setattr(_module, _name, _kernel)
