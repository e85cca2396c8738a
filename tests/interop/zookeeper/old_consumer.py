"""Java's old consumer of Kafka 1.1.1, as a process: a member of a group in ZooKeeper."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from tests.interop.real_kafka import TOOL

VERSION = "1.1.1"
LIMIT = 60.0


@contextmanager
def old_consumer(zookeeper: str, group: str, topic: str, **settings: object) -> Iterator[subprocess.Popen[str]]:
    """A member of the group while the ``with`` lasts. It prints the values that it reads. Settings have underscores."""
    lines = {"group.id": group, **{name.replace("_", "."): value for name, value in settings.items()}}
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as config:
        config.write("".join(f"{name}={value}\n" for name, value in lines.items()))
        config.flush()
        arguments = ["--zookeeper", zookeeper, "--whitelist", topic, "--consumer.config", config.name]
        process = subprocess.Popen(
            [TOOL, "run", "kafka.tools.ConsoleConsumer", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OTTLA_KAFKA_VERSION": VERSION},
        )
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=LIMIT)
