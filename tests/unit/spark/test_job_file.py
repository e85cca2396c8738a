"""What is wrong with a job file is one error that names the file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.cli.app import run
from ottla.spark.jobs.job_file import JobError, checked_writers, load_job

JOB = Path("job.py")


@pytest.fixture(autouse=True)
def unchanged_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))


def refused(folder: Path, text: str) -> JobError:
    (folder / "job.py").write_text(text)
    with pytest.raises(JobError) as error:
        load_job(folder / "job.py").writers(None)
    assert str(error.value).startswith(str(folder / "job.py"))
    return error.value


def test_a_file_with_a_syntax_error(tmp_path: Path) -> None:
    error = refused(tmp_path, "x = 1\ndef queries(spark:\n    return {}\n")
    assert str(error) == f"{tmp_path / 'job.py'}:2: '(' was never closed"
    assert error.details == ("  def queries(spark:",)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no function queries(spark) (def queries"),
        ("queries = {}", "has a dict instead of a function queries(spark)"),
        ("queries = 1", "has an int instead of a function queries(spark)"),
        ("import sys; sys.exit(3)", "called sys.exit(3) while it was loaded"),
        ("import nowhere_to_be_found", "raised ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("from . import helpers", "write 'import helpers'"),
        ("def queries(spark): return 1 / 0", "queries(spark) raised ZeroDivisionError: division by zero"),
        ("def queries(): ...", "queries() is called with the session as its only argument: too many positional arguments"),
        ("def queries(spark, topic): ...", "with the session as its only argument: missing a required argument: 'topic'"),
        ("def queries(spark): ...", "queries() returned None, not a dictionary of writers"),
        ("def queries(spark): return [1]", "queries() returned a list, not a dictionary"),
        ("def queries(spark): return {}", "queries() returned no queries"),
        ("def queries(spark): return {'a/b': 1}", "the query 'a/b' has an invalid name"),
        ("def queries(spark): return {1: 1}", "the query 1 has an invalid name"),
        ("def queries(spark): return {'_pipeline': 1}", "the query '_pipeline' has an invalid name"),
        ("def queries(spark): return {'a': 1}", "the query 'a' is an int, not a DataStreamWriter"),
    ],
)
def test_other_files(tmp_path: Path, text: str, reason: str) -> None:
    assert reason in str(refused(tmp_path, text))


def test_an_exception_has_the_lines_of_the_users_code(tmp_path: Path) -> None:
    (tmp_path / "prices.py").write_text("def price(name):\n    return {}[name]\n")
    error = refused(tmp_path, "import prices\n\ndef queries(spark):\n    return prices.price('tea')\n")
    assert error.details == (
        f"{tmp_path / 'job.py'}:4, in queries: return prices.price('tea')",
        f"{tmp_path / 'prices.py'}:2, in price: return {{}}[name]",
    )
    del sys.modules["prices"]


def test_frames_of_the_import_are_not_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen modules have no file: their names would be files in the current directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    error = refused(tmp_path, "import broken\n")
    assert error.details == (
        f"{tmp_path / 'job.py'}:1, in <module>: import broken",
        f"{tmp_path / 'broken.py'}:1, in <module>: 1 / 0",
    )


def test_a_file_with_a_nul_has_no_line(tmp_path: Path) -> None:
    error = str(refused(tmp_path, "a = 1\0\n"))
    assert error.startswith(f"{tmp_path / 'job.py'}: ")
    assert "null bytes" in error


def test_a_file_with_dataclasses_and_modules_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("ORDERS = 'orders'\n")
    text = "from __future__ import annotations\nimport dataclasses, beside\n@dataclasses.dataclass\nclass Row:\n    name: str\n"
    (tmp_path / "job.py").write_text(f"{text}def queries(spark): raise ValueError(Row(beside.ORDERS))\n")
    with pytest.raises(JobError, match=r"ValueError: Row\(name='orders'\)"):
        load_job(tmp_path / "job.py").writers(None)
    assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path)


def test_a_started_query_is_refused_and_stopped() -> None:
    stopped: list[str] = []
    query: Any = SimpleNamespace(awaitTermination=None, lastProgress=None, stop=lambda: stopped.append("stopped"))
    for returned in ({"orders": query}, query, [query]):
        with pytest.raises(JobError, match=r"is started already|returned a StreamingQuery|returned a list"):
            checked_writers(JOB, returned)
    assert stopped == ["stopped"] * 3


def test_one_writer_under_two_names_is_refused() -> None:
    """Its methods change it and return it, so the settings of the second query are those of both."""
    writer = SimpleNamespace(_jwrite=None, foreachBatch=None)
    with pytest.raises(JobError, match=r"the queries 'a' and 'c' are one writer \(call writeStream for each"):
        checked_writers(JOB, {"a": writer, "b": SimpleNamespace(_jwrite=None, foreachBatch=None), "c": writer})


def test_an_exception_of_java_is_named(tmp_path: Path) -> None:
    text = "An error occurred while calling o32.parquet.\\n: java.lang.ClassNotFoundException: no S3A\\n\\tat a.b(C.java:1)"
    error = refused(tmp_path, f"def queries(spark): raise RuntimeError('{text}')")
    assert str(error) == f"{tmp_path / 'job.py'}: queries(spark) raised RuntimeError: java.lang.ClassNotFoundException: no S3A"


def test_a_frame_is_refused_with_what_to_return() -> None:
    with pytest.raises(JobError, match=r"not a DataStreamWriter \(return frame.writeStream.format"):
        checked_writers(JOB, {"orders": SimpleNamespace(writeStream=None)})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("run job.py --once --every 10s", "cannot be used with --once"),
        ("run job.py --remote sc://here --master local[2]", "cannot be used with --master"),
        ("run job.py --every soon", "'soon' is not a time"),
        ("run job.py --conf a", "'a' is not NAME=VALUE"),
        ("run job.py --metrics-port 70000", "less than or equal to 65535"),
    ],
)
def test_options_that_are_bad_usage(capsys: pytest.CaptureFixture[str], line: str, reason: str) -> None:
    assert run(["pipeline", *line.split()]) == 2
    assert reason in " ".join(capsys.readouterr().err.replace("│", "").split())
