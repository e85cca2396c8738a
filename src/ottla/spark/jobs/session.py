"""The Spark session of a job.

Owns what has to be set before the JVM starts: the file that drains the sources, the log, the settings. Must not know the job.
Invariants: a setting of the user takes precedence; a file that creates a session itself gets the same settings.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ottla.runtime.java import find_java
from ottla.spark.jobs.causes import cause_of
from ottla.spark.jobs.job_file import JobError
from ottla.spark.jobs.stopping import own_handlers_kept
from ottla.spark.runner_environment import DRAIN

SPARK_JAVA = 17
"""The oldest Java that Spark 4 runs on."""
LOCATION = "spark.sql.streaming.checkpointLocation"
"""Spark's directory of checkpoints, which has no effect: each query of a job has the option."""
REMOTE = "SPARK_REMOTE"
"""The environment variable with which PySpark connects to a server of Connect."""
SETTINGS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.buffer.size": "1048576",
}
QUERY_SETTINGS = {"spark.sql.adaptive.streaming.stateless.enabled": "false"}
"""Settings of queries. Adaptive execution, which Spark 4.3 has for stateless streams too, changes the number of tasks of a repeated
batch, which a sink that writes exactly once may have to refuse."""
LOCAL_SETTINGS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
"""Settings for checkpoints on a local disk: there Spark's default takes 28 ms for what this one does in 8."""
LOG_SETTINGS = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {path}
appender.file.filePattern = {path}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
"""
"""The JVM's log goes to a file: an error of a query there has hundreds of lines."""
PYTHONS = {"spark.pyspark.python", "spark.pyspark.driver.python"}
"""Settings with which a user chooses a Python."""
PLAIN = re.compile(r"[\w./@+-]+", re.ASCII)
"""Paths that are safe in a class path and in Spark's shell scripts, whatever the locale is."""
LINES_OF_LOG = 5
"""Lines of the log in the error for a session that does not start."""


@dataclass(frozen=True)
class SessionSettings:
    """How a job's session is made. ``drain`` is the file that drains the sources, ``log`` that of the JVM."""

    name: str
    log: Path
    drain: Path
    master: str | None = None
    remote: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    is_local: bool = True
    """Whether the checkpoints are on a local disk."""


def prepare_environment(given: SessionSettings) -> None:
    """Set the environment for the JVM. Called before the job file is loaded, which may create a session.

    Raises ``OttlaError`` without a Java that Spark runs on, and for a setting that has an option of its own.
    """
    if LOCATION in given.settings:
        raise JobError(f"{LOCATION} has no effect on the queries of a job", hint="use --checkpoints")
    set_python()
    os.environ[DRAIN] = str(given.drain)
    if given.remote is not None:
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # functions such as udf() ask for it when the file is loaded
        return
    os.environ.pop(REMOTE, None)  # --master takes precedence, and a check runs here: a server does not take a sample
    find_java(SPARK_JAVA)
    if is_local(given.master, {**given.settings, **submit_options(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))}):
        use_installed_pyspark(given.drain.parent)
    log_settings = given.log.with_name("log4j2.properties")
    log_settings.write_text(LOG_SETTINGS.format(path=_escaped(str(given.log))), encoding="ascii")
    options = [os.environ.get("SPARK_SUBMIT_OPTS", ""), f'"-Dlog4j2.configurationFile={log_settings.resolve().as_uri()}"']
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join(filter(None, options))
    arguments = ["--master", given.master] if given.master is not None else []
    for name, value in _settings(given).items():
        arguments += ["--conf", f"{name}={value}"]
    # What the user has set there comes later, so it takes precedence.
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{shlex.join(arguments)} {os.environ.get('PYSPARK_SUBMIT_ARGS', 'pyspark-shell')}"


def submit_options(text: str) -> dict[str, str]:
    """Return the settings and other options in ``PYSPARK_SUBMIT_ARGS``, by name: ``spark.driver.memory``, ``--master``."""
    found: dict[str, str] = {}
    try:
        words = [part for word in shlex.split(text) for part in (word.split("=", 1) if word.startswith("--") else [word])]
    except ValueError:  # of a quote that is not closed, of which Spark will complain
        return found
    for name, value in itertools.pairwise(words):
        if name in ("--conf", "-c"):
            key, _, found[key] = value.partition("=")
        elif name.startswith("--"):
            found[name] = value
    return found


def is_local(master: str | None, options: Mapping[str, str]) -> bool:
    """Whether tasks are known to run on this host, with this Python. ``options`` are settings, and options of ``spark-submit``."""
    masters = [master, *(options.get(name) for name in ("--master", "spark.master")), os.environ.get("MASTER")]
    if any(each is not None and not each.startswith("local") for each in masters) or PYTHONS & options.keys():
        return False
    return "--properties-file" not in options and not _defaults_file().exists()


def _defaults_file() -> Path:
    """The file of defaults that Spark reads, which may name a master."""
    import pyspark

    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    return Path(os.environ.get("SPARK_CONF_DIR") or Path(home, "conf"), "spark-defaults.conf")


def set_python() -> None:
    """Have Spark's workers run this Python, unless the user has set another one."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def use_installed_pyspark(folder: Path, environment: MutableMapping[str, str] = os.environ) -> None:
    """Have Spark's Python processes import PySpark as it is installed. ``folder`` must exist as long as the JVM, which starts with
    ``environment``.

    1. The JVM puts ``python/lib/pyspark.zip`` of ``SPARK_HOME`` first into the path of each Python process. 2. Python has no
    compiled modules in that zip, so each process compiles them, which takes 1.2 s: that of each stream, and the first worker.
    3. The same modules are installed, and compiled. So ``SPARK_HOME`` becomes a directory with links to all but the zip.

    Does nothing if the user has chosen a ``SPARK_HOME`` or a Python, which may not have PySpark, or where links cannot be made.
    """
    import pyspark

    home, links = Path(pyspark.__file__).parent, folder / "spark-home"
    chosen = {environment.get(name, sys.executable) for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")}
    is_chosen = "SPARK_HOME" in environment or chosen != {sys.executable}
    if is_chosen or not (home / "jars").is_dir() or not PLAIN.fullmatch(str(links)):
        return
    try:
        links.mkdir(exist_ok=True)
        wanted = {links / entry.name: entry for entry in home.iterdir() if entry.name != "python"}
        for link in links.iterdir():  # an earlier run may have had another installation
            if link in wanted and link.readlink() == wanted[link]:
                del wanted[link]
            else:
                link.unlink()
        for link, target in wanted.items():
            link.symlink_to(target)
    except OSError:  # Windows allows links only to some users
        return
    environment["SPARK_HOME"] = str(links)


def _settings(given: SessionSettings) -> dict[str, str]:
    return {**SETTINGS, **QUERY_SETTINGS, **(LOCAL_SETTINGS if given.is_local else {}), **given.settings}


def create_session(given: SessionSettings) -> Any:
    """Return the session: a new one, or the one that the job file has created. Raises ``JobError``."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(given.name)
    size_of_log = _size(given.log)
    with own_handlers_kept():
        try:
            if given.remote is not None:
                session = builder.remote(given.remote).getOrCreate()
                for name, value in {**QUERY_SETTINGS, **given.settings}.items():
                    session.conf.set(name, value)
                return session
            if given.master is not None:
                builder = builder.master(given.master)
            return builder.getOrCreate()
        except Exception as error:
            where = given.remote or given.master or "Spark"
            raise JobError(
                f"cannot start a session on {where}: {cause_of(str(error)).message}", details=_end_of(given.log, size_of_log)
            ) from error


def _escaped(path: str) -> str:
    """A path in a file of Java's properties: ASCII, and ``\\uXXXX`` for each other unit of UTF-16."""
    text = path.replace("\\", "\\\\").encode("utf-16-be", "surrogatepass")
    units = (int.from_bytes(text[at : at + 2]) for at in range(0, len(text), 2))
    return "".join(chr(unit) if unit < 128 else f"\\u{unit:04x}" for unit in units)


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0


def _end_of(log: Path, size: int) -> tuple[str, ...]:
    """The end of what the JVM has added to its log, which had ``size`` bytes after the run before."""
    try:
        text = log.read_bytes()
    except OSError:
        return ()
    new = text[size:] if len(text) >= size else text  # the JVM has begun a new file
    return tuple(new.decode(errors="replace").splitlines()[-LINES_OF_LOG:])
