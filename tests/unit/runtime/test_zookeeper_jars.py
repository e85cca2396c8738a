"""The search for the jars of a ZooKeeper server."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from ottla.errors import OttlaError
from ottla.runtime.zookeeper_jars import LOGGING, NEEDED, find_jars


def folder_with(folder: Path, *jars: str) -> Path:
    folder.mkdir(exist_ok=True)
    for jar in jars:
        (folder / jar).touch()
    return folder


def test_the_installed_pyspark_has_them_all() -> None:
    assert [jar.exists() for jar in find_jars(None)] == [True] * len((*NEEDED, *LOGGING))


def test_any_version_is_found_and_the_newest_taken(tmp_path: Path) -> None:
    folder = folder_with(
        tmp_path / "jars",
        *("zookeeper-3.9.5.jar", "zookeeper-3.10.0.jar", "zookeeper-3.10.0-tests.jar", "zookeeper-jute-3.10.0.jar"),
        *("slf4j-api-2.0.17.jar", "snappy-java.jar", "metrics-core-2.2.0.jar", "metrics-core-4.1.12.1.jar", "README.txt"),
    )
    assert [jar.name for jar in find_jars(folder)] == [
        "zookeeper-3.10.0.jar",
        "zookeeper-jute-3.10.0.jar",
        "slf4j-api-2.0.17.jar",
        "snappy-java.jar",
        "metrics-core-4.1.12.1.jar",
    ]


def test_the_server_logs_if_all_jars_of_log4j_are_there(tmp_path: Path) -> None:
    needed = [f"{name}-1.jar" for name in NEEDED]
    logging = [f"{name}-2.jar" for name in LOGGING]
    folder = folder_with(tmp_path / "jars", *needed, *logging[1:])
    assert len(find_jars(folder)) == len(needed)
    folder_with(folder, logging[0])
    assert [jar.name for jar in find_jars(folder)] == needed + logging


def test_each_missing_jar_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "jars", "zookeeper-3.9.5.jar", "slf4j-api-2.0.17.jar", "zookeeper-jutes.jar")
    with pytest.raises(OttlaError) as raised:
        find_jars(folder)
    assert raised.value.args[0] == (
        f"jars of ZooKeeper are missing in {folder}: zookeeper-jute-*.jar, snappy-java-*.jar, metrics-core-*.jar"
    )
    assert "pip install 'pyspark" in raised.value.hint


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(OttlaError, match=rf"cannot be read: {tmp_path}/none: No such file"):
        find_jars(tmp_path / "none")


def test_without_pyspark_the_error_has_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OttlaError, match="pip install 'pyspark"):
        find_jars(None)


def test_a_pyspark_without_jars_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_with(tmp_path / "pyspark", "__init__.py")
    # find_spec() answers from the modules that an earlier test imported.
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(OttlaError, match=r"missing in the jars of PySpark: zookeeper-\*\.jar"):
        find_jars(None)
