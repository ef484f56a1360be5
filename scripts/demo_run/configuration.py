"""The demonstration's configuration: small bounds and short times, so that events take seconds instead of hours.

The ring, the queue and the outbox contain a few seconds of the workload instead of gigabytes, segments have 1 MB
instead of 16, and dead processes are detected after seconds. All else equals a real capture.
"""

import json
from pathlib import Path

SWITCH_S = 2  # minimum interval of segment switches in archive mode
OUTBOX_BYTES = 32 << 20
RING_BYTES = 8 << 20
TEMPLATE = """\
# Written by scripts/demo; conf/tidemark.toml describes every key.
[capture]
dsn = {dsn}
group = {group}

[select]
tables = ["app.*"]

[archive]
folder = {spool}
program = {program}
switch_s = {switch_s}
free_bytes_min = 67108864

[ring]
bytes_max = {ring_bytes}

[decode]
queue_bytes = 1048576

[deliver]
group_bytes_max = {ring_bytes}

[outbox]
bytes_max = {outbox_bytes}

[realtime]
return_first_s = 2
return_max_s = 5

[watchdog]
watchdog_s = 10
restart_s = 2
"""


def write(path: Path, *, dsn: str, group: str | None, spool: Path, program: str) -> None:
    """Write the file. `group`: the group that shares the spool."""
    text = TEMPLATE.format(
        dsn=json.dumps(dsn),
        group=json.dumps(group or ""),
        spool=json.dumps(str(spool)),
        program=json.dumps(program),
        switch_s=SWITCH_S,
        ring_bytes=RING_BYTES,
        outbox_bytes=OUTBOX_BYTES,
    )
    path.write_text(text)
