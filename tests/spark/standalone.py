"""A standalone cluster of Spark: a master and two workers, from the classes in pip's PySpark."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import urllib.request
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from tests.interop.real_kafka import QUICK_JVM, free_port_pair
from tests.spark.stream_progress import wait_until

SETTINGS_OF_CLUSTER = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_JVM,
    "spark.task.maxFailures": "20",
    "spark.sql.adaptive.enabled": "false",
}
"""Settings of a session on it. Tasks are lost with executors, which a test kills more often than four times."""


class Standalone:
    """The processes of the cluster."""

    def __init__(self, home: Path, workers: int = 2) -> None:
        self._home = home
        self._processes: list[subprocess.Popen[bytes]] = []
        port = free_port_pair()
        self.url = f"spark://127.0.0.1:{port}"
        """The master, for ``SparkSession.builder.master``."""
        self._page = f"http://127.0.0.1:{port + 1}/json/"
        self._start("master.Master", "--host", "127.0.0.1", "--webui-port", str(port + 1), "--port", str(port))
        for number in range(workers):
            # Each is a host of its own: Spark starts no speculative copy on the host of the original.
            where = ["--host", f"127.0.0.{1 + number}", "--webui-port", "0"]
            work = ["--work-dir", str(home / f"worker-{number}"), "--cores", "1", "--memory", "1g"]
            self._start("worker.Worker", *where, *work, self.url)
        wait_until(lambda: self._is_up(workers), 180)

    def executors(self) -> list[int]:
        """Return the process ids of all executors."""
        files = [file for worker in self._processes[1:] for file in Path(f"/proc/{worker.pid}/task").glob("*/children")]
        return [int(pid) for file in files for pid in file.read_text().split()]

    def kill_executor(self) -> None:
        """SIGKILL one executor. Its worker starts another one."""
        os.kill(self.executors()[0], signal.SIGKILL)

    def stop(self) -> None:
        """End all processes: a worker that is terminated kills its executors."""
        for process in reversed(self._processes):
            process.terminate()
            process.wait()

    def _start(self, name: str, *arguments: str) -> None:
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
        environment |= {"SPARK_DAEMON_JAVA_OPTS": QUICK_JVM, "SPARK_DAEMON_MEMORY": "256m"}
        command = [f"{_find_spark_home()}/bin/spark-class", f"org.apache.spark.deploy.{name}", *arguments]
        with (self._home / f"{name}-{len(self._processes)}.log").open("wb") as log:
            self._processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    def _is_up(self, workers: int) -> bool:
        assert all(process.poll() is None for process in self._processes), f"a process ended; see {self._home}"
        with contextlib.suppress(OSError), urllib.request.urlopen(self._page, timeout=5) as page:
            return page.read().count(b'"ALIVE"') == workers + 1
        return False
