"""Executors in processes of their own: source and sink work, and one without Ottla is named by a single error."""

from __future__ import annotations

import json
import socket
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from ottla.version import __version__
from tests.interop.real_kafka import QUICK_JVM
from tests.spark.conftest import Kafka, numbered
from tests.spark.driver_process import SOURCE_AND_SINK, driver, result_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # three JVMs of its own

PYTHON = """#!/bin/sh
home=$(dirname "$0")
state=$(cat "$home/state" 2>/dev/null)
if [ "$IS_EXECUTOR" ] && [ "$state" ]; then
  PYTHONPATH="$home/$state:{packages}" exec {python} -S "$@"
fi
exec {python} "$@"
"""
"""The Python of the workers. With a ``state``, that of executors has only the modules in that directory, and PySpark with what it
needs: -S leaves out the checkout, which .venv refers to."""

SCRIPT = f"""
{SOURCE_AND_SINK}

def error_of(job):
    try:
        job()
    except Exception as error:
        return str(error)

def restart_workers():
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words, environment = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
        except OSError:
            continue
        if b"pyspark.daemon" in words and b"IS_EXECUTOR=" + home.encode() in environment:
            os.kill(int(process.name), signal.SIGTERM)

errors = {{}}
jobs = {{"batch": load().count, "write": write, "stream": lambda: copy("second")}}
for state, names in (("without", jobs), ("other", ["batch"])):
    pathlib.Path(home, "state").write_text(state)
    restart_workers()
    errors |= {{f"{{state}} {{name}}": error_of(jobs[name]) for name in names}}
print(json.dumps({{"batch": count, "errors": errors}}))
"""


@pytest.fixture(scope="module")
def topic(kafka: Kafka) -> str:
    name = kafka.create(2)
    kafka.produce(name, [*numbered(300), *numbered(300, 300, 1)])
    for more in ("written", "copy"):
        kafka.create(name=f"{name}-{more}")
    return name


@pytest.fixture(scope="module")
def found(kafka: Kafka, topic: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one application on two executors found."""
    home = tmp_path_factory.mktemp("cluster")
    python = home / "python"
    python.write_text(PYTHON.format(python=sys.executable, packages=sysconfig.get_path("purelib")))
    python.chmod(0o755)
    other = home / "other" / "ottla"
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    (other / "version.py").write_text('__version__ = "0.0.9"')
    settings = {"spark.executorEnv.IS_EXECUTOR": str(home), "spark.executor.extraJavaOptions": QUICK_JVM}
    process = driver(home, SCRIPT, kafka.servers, topic, "local-cluster[2,1,1024]", python=python, settings=settings)
    result: dict[str, Any] = json.loads(result_of(process))
    return result


def test_a_batch_is_read(found: dict[str, Any]) -> None:
    assert found["batch"] == 600


def test_a_batch_is_written(found: dict[str, Any], kafka: Kafka, topic: str) -> None:
    assert kafka.ends(f"{topic}-written") == {(f"{topic}-written", 0): 100}


def test_a_stream_is_copied_and_its_progress_committed(found: dict[str, Any], kafka: Kafka, topic: str) -> None:
    assert kafka.ends(f"{topic}-copy") == {(f"{topic}-copy", 0): 600}
    assert kafka.committed(f"{topic}-first") == kafka.ends(topic)


@pytest.mark.parametrize("job", ["batch", "write", "stream"])
def test_an_executor_without_ottla_is_named(found: dict[str, Any], job: str) -> None:
    error = found["errors"][f"without {job}"]
    where = f"{Path(sys.executable)} on host {socket.gethostname()}"
    assert f"Ottla is not installed for {where}; run there: " in error
    assert f"-m pip install 'ottla[spark]=={__version__}'" in error
    assert error.count("Error: ") == 1


def test_an_executor_with_another_version_is_named(found: dict[str, Any]) -> None:
    error = found["errors"]["other batch"]
    assert f"on host {socket.gethostname()} has Ottla 0.0.9, the driver has {__version__}; run there: " in error
