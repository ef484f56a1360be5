"""Interpreter settings of a capturing process: its other work must not delay a commit for long."""

import gc
import sys

SWITCH_S = 0.0005  # how long a thread that computes keeps another from the interpreter; Python's own default is 0.005


def put_latency_first() -> None:
    """Have threads change sooner, and the collector pass over all that is there now; to be said of each new capture.

    A full collection looks at every object, and what a capture is made of are a hundred thousand that stay: all threads
    stood still for a tenth of a second. Whoever lets go of a capture unfreezes them.
    """
    sys.setswitchinterval(SWITCH_S)
    gc.freeze()
