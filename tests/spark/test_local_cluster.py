"""Executors in processes of their own, with and without Spark Connect: source and sink work, and one without Ottla is named."""

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

pytestmark = pytest.mark.timeout(300)

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
for state, name in TRIED:
    if pathlib.Path(home, "state").read_text() != state:
        pathlib.Path(home, "state").write_text(state)
        restart_workers()
    errors[f"{{state}} {{name}}"] = error_of(jobs[name])
print(json.dumps({{"session": type(spark).__module__, "batch": count, "errors": errors}}))
"""


TRIED = [("without", "batch"), ("without", "write"), ("without", "stream"), ("other", "batch")]
"""What executors lack, and a job that fails for it."""


@pytest.fixture(scope="module", params=["connect", pytest.param("classic", marks=pytest.mark.slow)])
def session(request: pytest.FixtureRequest) -> str:
    """The kind of the session."""
    kind: str = request.param
    return kind


@pytest.fixture(scope="module")
def topic(kafka: Kafka, session: str) -> str:
    name = kafka.create(2)
    kafka.produce(name, [*numbered(300), *numbered(300, 300, 1)])
    for more in ("written", "copy"):
        kafka.create(name=f"{name}-{more}")
    return name


@pytest.fixture(scope="module")
def found(kafka: Kafka, session: str, topic: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one application found."""
    home = tmp_path_factory.mktemp("cluster")
    python = home / "python"
    python.write_text(PYTHON.format(python=sys.executable, packages=sysconfig.get_path("purelib")))
    python.chmod(0o755)
    (home / "state").touch()
    other = home / "other" / "ottla"
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    (other / "version.py").write_text('__version__ = "0.0.9"')
    settings = {"spark.executorEnv.IS_EXECUTOR": str(home), "spark.executor.extraJavaOptions": QUICK_JVM}
    settings |= {"spark.sql.codegen.wholeStage": "false", "spark.sql.adaptive.enabled": "false"}  # both take time to compile
    script = f"TRIED = {TRIED[: 1 if session == 'connect' else None]}\n{SCRIPT}"
    is_connect = session == "connect"  # with one executor, which takes less time to start
    cluster = "local-cluster[1,2,1024]" if is_connect else "local-cluster[2,1,1024]"
    process = driver(home, script, kafka.servers, topic, cluster, is_connect=is_connect, python=python, settings=settings)
    result: dict[str, Any] = json.loads(result_of(process))
    return result


def test_a_batch_is_read(found: dict[str, Any], session: str) -> None:
    assert found["batch"] == 600
    assert found["session"] == f"pyspark.sql.{session}.session".replace(".classic", "")


def test_a_batch_is_written(found: dict[str, Any], kafka: Kafka, topic: str) -> None:
    assert kafka.ends(f"{topic}-written") == {(f"{topic}-written", 0): 100}


def test_a_stream_is_copied_and_its_progress_committed(found: dict[str, Any], kafka: Kafka, topic: str) -> None:
    assert kafka.ends(f"{topic}-copy") == {(f"{topic}-copy", 0): 600}
    assert kafka.committed(f"{topic}-first") == kafka.ends(topic)


def test_an_executor_that_lacks_ottla_is_named(found: dict[str, Any], session: str) -> None:
    where = f"{Path(sys.executable)} on host {socket.gethostname()}"
    expected = {
        "without": f"Ottla is not installed for {where}; run there: ",
        "other": f"{where} has Ottla 0.0.9, the driver has {__version__}; run there: ",
    }
    assert len(found["errors"]) == (1 if session == "connect" else len(TRIED))
    for job, error in found["errors"].items():
        assert expected[job.split()[0]] in error
        assert f"-m pip install 'ottla[spark]=={__version__}'" in error
        assert error.count("Error: ") == 1
