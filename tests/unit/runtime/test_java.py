"""The search for a Java that is new enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.errors import OttlaError
from ottla.runtime.java import find_java


def pretend(folder: Path, says: str) -> None:
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ('openjdk version "17.0.15" 2025-04-15', None),
        ('openjdk version "21" 2023-09-19', None),
        ('java version "1.8.0_392"', "Java 8 is too old"),
        ('openjdk version "11.0.2"', "Java 11 is too old"),
        ("something else", "has no version"),
    ],
)
def test_the_version_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, reason: str | None) -> None:
    pretend(tmp_path, says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if reason is None:
        assert find_java(17) == str(tmp_path / "bin" / "java")
    else:
        with pytest.raises(OttlaError, match=reason):
            find_java(17)


def test_an_older_java_is_enough_for_a_program_that_needs_no_newer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(tmp_path, 'java version "1.8.0_392"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java(8) == str(tmp_path / "bin" / "java")


def test_a_java_that_cannot_be_run_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(tmp_path, "")
    (tmp_path / "bin" / "java").write_bytes(b"\x7fELF")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(OttlaError, match=r": Exec format error \(install Java"):
        find_java(17)


def test_the_output_of_java_need_not_be_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(tmp_path, "")
    (tmp_path / "bin" / "java").write_bytes(b"#!/bin/sh\necho 'caf\xe9 version \"21\"' >&2\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java(17)


def test_without_java_the_error_has_the_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OttlaError, match="apt-get install"):
        find_java(17)
