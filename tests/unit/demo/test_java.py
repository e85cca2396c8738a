"""The search for a Java that Spark can use."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.demo import java


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
    against = java.missing_java()
    assert (against is None) if reason is None else (against is not None and reason in against)


def test_a_java_that_cannot_be_run_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(tmp_path, "")
    (tmp_path / "bin" / "java").write_bytes(b"\x7fELF")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert ": Exec format error; install Java" in str(java.missing_java())


def test_the_output_of_java_need_not_be_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(tmp_path, "")
    (tmp_path / "bin" / "java").write_bytes(b"#!/bin/sh\necho 'caf\xe9 version \"21\"' >&2\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java.missing_java() is None


def test_without_java_the_error_has_the_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "apt-get install" in str(java.missing_java())
