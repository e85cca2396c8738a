"""What is set before the JVM of a job starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest

from ottla.spark.jobs.job_file import JobError
from ottla.spark.jobs.session import SessionSettings, create_session, prepare_environment, use_installed_pyspark

INSTALLED = Path(pyspark.__file__).parent


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """``os.environ`` without what a job sets, which is restored after the test."""
    for name in (
        "PYSPARK_SUBMIT_ARGS",
        "SPARK_SUBMIT_OPTS",
        "PYSPARK_PYTHON",
        "PYSPARK_DRIVER_PYTHON",
        "OTTLA_PIPELINE_DRAIN",
        "SPARK_HOME",
        "SPARK_CONF_DIR",
        "MASTER",
        "SPARK_REMOTE",
    ):
        monkeypatch.setenv(name, "")  # so that it is deleted after the test
        monkeypatch.delenv(name)
    return monkeypatch


def test_a_job_has_the_same_tasks_in_a_repeated_batch(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    prepare_environment(SessionSettings("job", tmp_path / "spark.log", tmp_path / "drain"))
    assert "--conf spark.sql.adaptive.streaming.stateless.enabled=false" in os.environ["PYSPARK_SUBMIT_ARGS"]


@pytest.mark.parametrize(
    ("master", "python", "is_local"),
    [(None, None, True), ("local[4]", None, True), ("spark://host:7077", None, False), ("local[4]", "/opt/python", False)],
)
def test_a_local_job_has_no_zip_of_pyspark(
    environment: pytest.MonkeyPatch, tmp_path: Path, master: str | None, python: str | None, is_local: bool
) -> None:
    settings = {} if python is None else {"spark.pyspark.python": python}
    prepare_environment(SessionSettings("job", tmp_path / "spark.log", tmp_path / "drain", master, settings=settings))
    assert ("SPARK_HOME" in os.environ) is is_local


def prepare(folder: Path, **settings: str) -> None:
    prepare_environment(SessionSettings("job", folder / "spark.log", folder / "drain", settings=settings))


@pytest.mark.parametrize(
    ("given", "is_local"),
    [
        ("pyspark-shell", True),
        ("--master local[2] pyspark-shell", True),
        ("--conf spark.master=local --name 'my job' pyspark-shell", True),
        ("--master yarn pyspark-shell", False),
        ("--master=k8s://host pyspark-shell", False),
        ("--conf spark.master=yarn pyspark-shell", False),
        ("-c spark.pyspark.python=/opt/python pyspark-shell", False),
        ("--properties-file here pyspark-shell", False),
    ],
)
def test_a_master_in_the_arguments_of_spark_submit(
    environment: pytest.MonkeyPatch, tmp_path: Path, given: str, is_local: bool
) -> None:
    environment.setenv("PYSPARK_SUBMIT_ARGS", given)
    prepare(tmp_path)
    assert ("SPARK_HOME" in os.environ) is is_local
    assert os.environ["PYSPARK_SUBMIT_ARGS"].endswith(given)


def test_a_master_in_a_setting_in_the_environment_or_maybe_in_a_file(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    prepare(tmp_path, **{"spark.master": "yarn"})
    for name in ("PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS"):
        environment.delenv(name)
    environment.setenv("MASTER", "yarn")
    prepare(tmp_path)
    for name in ("PYSPARK_SUBMIT_ARGS", "MASTER"):
        environment.delenv(name)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").touch()
    environment.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    prepare(tmp_path)
    assert "SPARK_HOME" not in os.environ


def test_the_directory_of_the_checkpoints_is_no_setting(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = "spark.sql.streaming.checkpointLocation"
    with pytest.raises(JobError, match=rf"{name} has no effect .* \(use --checkpoints\)"):
        prepare(tmp_path, **{name: "/elsewhere"})


def test_a_session_here_is_not_one_of_the_server_in_the_environment(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A check runs here, and so does a run with ``--master``."""
    environment.setenv("SPARK_REMOTE", "sc://localhost")
    prepare(tmp_path)
    assert "SPARK_REMOTE" not in os.environ


class Builder:
    """PySpark's, for a session that does not start."""

    def __init__(self, start: Callable[[], None]) -> None:
        self._start = start

    def appName(self, name: str) -> Builder:
        return self

    def master(self, master: str) -> Builder:
        return self

    def getOrCreate(self) -> None:
        self._start()
        raise RuntimeError(
            "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n: no memory\n\tat a.b(C)"
        )


@pytest.mark.parametrize("is_new", [False, True])
def test_a_session_that_does_not_start_has_the_reason_and_its_own_lines_of_the_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_new: bool
) -> None:
    """The JVM appends to the log, or begins a new one when it is large."""
    log = tmp_path / "spark.log"
    log.write_text("an error of the run before\n" * 10)

    def start() -> None:
        with log.open("w" if is_new else "a") as file:
            file.write("of this one\n")

    monkeypatch.setattr("pyspark.sql.SparkSession.builder", Builder(start))
    with pytest.raises(JobError, match=r"^cannot start a session on local\[2\]: no memory$") as failed:
        create_session(SessionSettings("job", log, tmp_path / "drain", "local[2]"))
    assert failed.value.details == ("of this one",)


def test_the_log_may_have_any_path(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "dépôt 😀"
    folder.mkdir()
    prepare(folder)
    settings = (folder / "log4j2.properties").read_bytes().decode("ascii")
    assert f"fileName = {tmp_path}/d\\u00e9p\\u00f4t \\ud83d\\ude00/spark.log\n" in settings
    assert "SPARK_HOME" not in os.environ  # the JVM and its scripts would need a fitting locale


def test_spark_home_is_the_installed_pyspark_without_its_zip(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    for _ in range(2):
        use_installed_pyspark(tmp_path, environment)
    home = Path(environment["SPARK_HOME"])
    assert {path.name for path in home.iterdir()} == {path.name for path in INSTALLED.iterdir()} - {"python"}
    assert (home / "bin" / "spark-submit").samefile(INSTALLED / "bin" / "spark-submit")


@pytest.mark.parametrize(
    "given", [{"SPARK_HOME": "/opt/spark"}, {"PYSPARK_PYTHON": "/opt/python"}, {"PYSPARK_DRIVER_PYTHON": "python3"}]
)
def test_what_the_user_has_chosen_stays(tmp_path: Path, given: dict[str, str]) -> None:
    environment = dict(given)
    use_installed_pyspark(tmp_path, environment)
    assert environment == given


def test_links_to_another_installation_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "spark-home").mkdir()
    for name in ("bin", "gone"):
        (tmp_path / "spark-home" / name).symlink_to(tmp_path / "old" / name)
    environment: dict[str, str] = {}
    use_installed_pyspark(tmp_path, environment)
    home = Path(environment["SPARK_HOME"])
    assert (home / "bin").samefile(INSTALLED / "bin")
    assert not (home / "gone").is_symlink()


def test_without_links_spark_is_as_it_is(tmp_path: Path) -> None:
    environment = {"PYSPARK_PYTHON": sys.executable}
    (tmp_path / "spark-home").touch()
    use_installed_pyspark(tmp_path, environment)
    assert environment == {"PYSPARK_PYTHON": sys.executable}
