"""Interpreter settings of a capturing process: its other work must not delay a commit for long."""

import gc
import sys

SWITCH_S = 0.0005  # how long a computing thread keeps another from the interpreter; Python's own default is 0.005


def put_latency_first() -> None:
    """Let threads change sooner, and the collector skip all present objects; to be called for each new capture.

    A full collection visits every object, and a capture has a hundred thousand permanent ones: all threads were stopped
    for a tenth of a second. The code that releases a capture unfreezes them.
    """
    sys.setswitchinterval(SWITCH_S)
    gc.freeze()
