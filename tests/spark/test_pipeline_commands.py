"""``ottla pipeline`` as users run it: in processes of its own, with a JVM each."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from ottla.spark.jobs.project import write_project
from tests.end_to_end.programs import OTTLA, environment, free_port, ottla
from tests.spark.conftest import Kafka, Message

LONG = 400.0
"""Seconds: several JVMs start, on a machine that may be busy."""
JOB = """
import os
from pyspark.sql import functions as F
import shared

KAFKA = {"kafka.bootstrap.servers": os.environ["OTTLA_BOOTSTRAP_SERVERS"]}

@F.udf
def doubled(value):
    return shared.double(value)

def queries(spark):
    options = {**KAFKA, "subscribe": os.environ["SOURCE"], "startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
    target = {**KAFKA, "topic": os.environ["TARGET"]}
    rows = spark.readStream.format("ottla").options(**options).load().selectExpr("CAST(value AS STRING) AS value")
    return {
        "lake": rows.writeStream.format("parquet").option("path", os.environ["LAKE"]),
        "copy": rows.select(doubled("value").alias("value")).writeStream.format("ottla").options(**target),
    }
"""


class Project:
    """A job, and the topics that it reads and writes."""

    def __init__(self, kafka: Kafka, home: Path) -> None:
        self.kafka, self.home = kafka, home
        self.source, self.target = kafka.create(2), kafka.create()
        (home / "job.py").write_text(JOB)
        (home / "shared.py").write_text("def double(value):\n    return str(2 * int(value))\n")
        self.environment = {
            **environment(kafka.servers),
            "SOURCE": self.source,
            "TARGET": self.target,
            "LAKE": str(home / "lake"),
        }

    def produce(self, count: int, first: int = 0) -> None:
        self.kafka.produce(self.source, [Message(str(each).encode(), partition=each % 2) for each in range(first, first + count)])

    def run(self, command: str, *options: str) -> subprocess.CompletedProcess[str]:
        line = [OTTLA, "pipeline", command, str(self.home / "job.py"), *options]
        return subprocess.run(line, env=self.environment, capture_output=True, text=True, timeout=LONG)

    def start(self, *options: str, master: str | None = "local[2]", start_new_session: bool = False) -> subprocess.Popen[str]:
        line = [OTTLA, "pipeline", "run", str(self.home / "job.py"), *([] if master is None else ["--master", master]), *options]
        return subprocess.Popen(line, env=self.environment, stderr=subprocess.PIPE, text=True, start_new_session=start_new_session)

    def status(self) -> dict[str, dict[str, Any]]:
        done = self.run("status", "-b", self.kafka.servers, "--format", "json")
        return {row["query"]: row for row in json.loads(done.stdout)} if done.returncode == 0 else {}

    def lake(self) -> list[int]:
        """The rows of the files that Spark has committed, in its log of the sink."""
        import pyarrow.parquet as pq

        log = self.home / "lake" / "_spark_metadata"
        lines = [line for file in log.glob("[0-9]*") for line in file.read_text().splitlines() if line.startswith("{")]
        files = {json.loads(line)["path"].removeprefix("file://") for line in lines}
        return sorted(int(value) for file in files for value in pq.read_table(file)["value"].to_pylist())

    def copied(self) -> list[int]:
        """The records in the target."""
        settings = {"bootstrap.servers": self.kafka.servers, "group.id": "any", "enable.auto.commit": False}
        consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
        count, found = sum(self.kafka.ends(self.target).values()), list[int]()
        consumer.subscribe([self.target])
        while len(found) < count:
            record = consumer.poll(60)
            found.append(int(record.value()))
        consumer.close()
        return sorted(found)


@pytest.fixture
def project(kafka: Kafka, tmp_path: Path) -> Project:
    return Project(kafka, tmp_path)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG / 2
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.3)


@pytest.mark.slow
@pytest.mark.timeout(LONG)
def test_the_test_of_a_new_project_passes(tmp_path: Path) -> None:
    write_project(tmp_path / "pricing")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path / "pricing", env=environment(), capture_output=True, text=True, timeout=LONG)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(2 * LONG)
def test_a_check_writes_nothing_and_a_run_does(project: Project) -> None:
    project.produce(100)
    done = project.run("check", "--sample", "30", "--master", "local[2]", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert [(row["query"], row["records"], row["result"]) for row in json.loads(done.stdout)] == [
        ("lake", 30, "ok"),
        ("copy", 30, "ok"),
    ]
    assert sorted(path.name for path in project.home.iterdir() if path.name != "__pycache__") == ["job.py", "shared.py"]
    assert project.copied() == []
    done = project.run("run", "--once", "--master", "local[2]")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("lake: batch ") >= 1
    assert project.lake() == list(range(100))
    assert project.copied() == [2 * value for value in range(100)]
    assert {name: (row["state"], row["lag"], row["batch"]) for name, row in project.status().items()} == {
        "lake": ("done", 0, 4),
        "copy": ("done", 0, 4),
    }


@pytest.mark.slow
@pytest.mark.timeout(2 * LONG)
def test_a_check_of_what_cannot_work(project: Project) -> None:
    project.produce(10)
    (project.home / "shared.py").write_text("def double(value):\n    return prices[value]\n")
    done = project.run("check", "--master", "local[2]")
    assert done.returncode == 1
    assert "error: query copy: NameError: name 'prices' is not defined\n" in done.stderr
    assert "\tat " not in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(3 * LONG)
def test_a_run_that_is_killed_and_one_that_is_stopped(project: Project) -> None:
    """Each row is in the lake once. The sink of the copy writes at least once."""
    project.produce(100)
    first = project.start()
    wait_for(lambda: (project.status().get("lake") or {"batch": None})["batch"] not in (None, 0))
    second = project.run("run", "--once")
    assert (second.returncode, f"the job runs already, as process {first.pid}" in second.stderr) == (1, True)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=LONG)
    assert {row["state"] for row in project.status().values()} == {"killed"}
    project.produce(100, 100)
    again = project.start("--every", "500ms")
    wait_for(lambda: {row["lag"] for row in project.status().values()} == {0})
    again.send_signal(signal.SIGTERM)
    _, errors = again.communicate(timeout=LONG)
    assert again.returncode == 0, errors
    assert project.lake() == list(range(200))
    assert set(project.copied()) == {2 * value for value in range(200)}


@pytest.mark.slow
@pytest.mark.timeout(2 * LONG)
def test_ctrl_c_in_a_terminal(project: Project) -> None:
    """The terminal sends it to all processes of the job: to the JVM and Python's workers as well."""
    project.produce(400)
    port = free_port()
    run = project.start("--metrics-port", str(port), start_new_session=True)
    wait_for(lambda: (project.status().get("copy") or {"batch": None})["batch"] is not None)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        metrics = answer.read().decode()
    assert re.search(r'^ottla_pipeline_lag_records\{[^}]*query="copy"[^}]*\} \d', metrics, re.MULTILINE), metrics
    os.killpg(run.pid, signal.SIGINT)
    _, errors = run.communicate(timeout=LONG)
    assert run.returncode == 0, errors
    # On a busy machine PySpark's daemon prints a BrokenPipeError when Spark has closed its connection to a worker.
    frames = [line for line in errors.splitlines() if line.lstrip().startswith("File ") and "/pyspark/daemon.py" not in line]
    assert frames == [], errors
    wait_for(lambda: subprocess.run(["pgrep", "-g", str(run.pid)], capture_output=True).stdout == b"")
    copied, lake = project.copied(), project.lake()
    assert 0 < len(copied) < 400
    assert {len(copied) % 20, len(lake) % 20} == {0}  # whole batches
    done = project.run("run", "--once")
    assert done.returncode == 0, done.stderr
    assert project.copied() == [2 * value for value in range(400)]  # no batch was stopped half-way and written again
    assert project.lake() == list(range(400))


@pytest.mark.slow
@pytest.mark.timeout(LONG)
def test_ctrl_c_while_a_file_that_has_created_its_session_is_loaded(tmp_path: Path) -> None:
    """From there on PySpark's own handler would end the program without a word."""
    began = tmp_path / "began"
    lines = [
        "import pathlib, time",
        "from pyspark.sql import SparkSession",
        "SparkSession.builder.getOrCreate()",
        f"pathlib.Path({str(began)!r}).touch()",
        "time.sleep(3)",
        "def queries(spark): ...",
    ]
    (tmp_path / "job.py").write_text("\n".join(lines))
    line = [OTTLA, "pipeline", "run", str(tmp_path / "job.py"), "--master", "local[1]"]
    run = subprocess.Popen(line, env=environment(), stderr=subprocess.PIPE, text=True)
    wait_for(began.exists)
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=LONG)
    assert (run.returncode, errors.splitlines()[-1]) == (0, "SIGINT: the job ends as soon as Spark has started"), errors


@pytest.mark.slow
@pytest.mark.timeout(2 * LONG)
def test_a_remote_job_that_is_stopped(project: Project) -> None:
    """The server's planner does not see the signal, so one more batch may start."""
    project.produce(2000)
    project.environment["PYTHONPATH"] = os.pathsep.join([str(project.home), os.environ.get("PYTHONPATH", "")])
    run = project.start("--remote", "local[2]", master=None)
    wait_for(lambda: (project.status().get("copy") or {"batch": None})["batch"] is not None)
    before = project.status()["copy"]["batch"]
    run.send_signal(signal.SIGTERM)
    at = sum(project.kafka.ends(project.target).values())
    _, errors = run.communicate(timeout=LONG)
    assert run.returncode == 0, errors
    assert before <= project.status()["copy"]["batch"]
    assert sum(project.kafka.ends(project.target).values()) <= at + 2 * 20
    copied = project.copied()
    assert copied == [2 * value for value in range(len(copied))]


@pytest.mark.slow
@pytest.mark.timeout(2 * LONG)
def test_a_jvm_that_dies(project: Project) -> None:
    project.produce(20)
    run = project.start()
    wait_for(lambda: (project.status().get("lake") or {"batch": None})["batch"] is not None)
    (jvm,) = subprocess.run(["pgrep", "-P", str(run.pid)], capture_output=True, text=True).stdout.split()
    os.kill(int(jvm), signal.SIGKILL)
    _, errors = run.communicate(timeout=LONG)
    assert (run.returncode, errors.splitlines()[-1].partition(" (")[0]) == (1, "error: Spark's JVM has ended, and with it the job")
    assert "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.timeout(2 * LONG)
def test_spark_connect(project: Project) -> None:
    project.produce(60)
    project.environment["PYTHONPATH"] = os.pathsep.join([str(project.home), os.environ.get("PYTHONPATH", "")])
    done = project.run("run", "--once", "--remote", "local[2]")
    assert done.returncode == 0, done.stderr
    assert project.lake() == list(range(60))
    assert project.copied() == [2 * value for value in range(60)]
    assert project.status()["lake"]["lag"] == 0


@pytest.mark.slow
@pytest.mark.timeout(2 * LONG)
def test_no_session(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("def queries(spark): ...")
    done = ottla("pipeline", "run", str(tmp_path / "job.py"), "--conf", "spark.driver.memory=1", timeout=LONG)
    assert done.returncode == 1
    assert "error: cannot start a session on Spark: " in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads((tmp_path / "checkpoints" / "job" / "_pipeline" / "state.json").read_text())["state"] == "failed"
