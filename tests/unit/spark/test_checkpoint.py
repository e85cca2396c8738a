"""The files of a checkpoint: what they say, what has changed, and a copy for Spark's connector."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla import Admin, Broker, Producer
from ottla.cli.app import run
from ottla.errors import ConfigError, IllegalStateError, OttlaError
from ottla.spark.checkpoint import convert, progress_of, read_batches
from ottla.spark.jobs.state_file import RunDirectory

METADATA = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1_700_000_000_000, "conf": {}})


def checkpoint(folder: Path, *batches: list[Any], committed: int = 0) -> Path:
    """A checkpoint with the end offsets of each source after each batch."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    for number, sources in enumerate(batches):
        lines = ["v1", METADATA, *("-" if source is None else json.dumps(source) for source in sources)]
        (folder / "offsets" / str(number)).write_text("\n".join(lines))
        (folder / "offsets" / f".{number}.crc").write_bytes(b"crc")
    for number in range(committed):
        (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    (folder / "metadata").write_text('{"id":"x"}')
    return folder


FIRST = {"a": {"0": 10, "1": 5}, "$from": {"a": {"0": 0, "1": 5}}, "$topics": {"a": "one"}}
SECOND = {"a": {"0": 12, "1": 9, "2": 3}, "b": {"0": 7}, "$topics": {"a": "one", "b": "two"}}
THIRD = {"a": {"0": 4}, "$topics": {"a": "another"}}


def test_the_progress_of_each_topic(tmp_path: Path) -> None:
    batches = read_batches(checkpoint(tmp_path / "c", [FIRST], [SECOND, {"x": {"0": 1}}, None], [THIRD], committed=2))
    assert [batch.is_committed for batch in batches] == [True, True, False]
    assert batches[0].written_at == 1_700_000_000_000
    assert [(each.batch.number, each.source, each.topic, each.records, each.note) for each in progress_of(batches)] == [
        (0, 0, "a", 10, ""),
        (1, 0, "a", 9, "1 partition is new"),
        (1, 0, "b", 7, "the topic is new"),
        (1, 1, "x", None, "the source is new"),
        (2, 0, "a", None, "the topic was recreated"),
        (2, 0, "b", None, "the topic is no longer read"),
        (2, 1, "x", None, "the source is no longer read"),
    ]


def test_a_copy_has_no_keys_of_ours_and_the_start_of_the_first_batch(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", [FIRST, {"logOffset": 3}], [SECOND, None], committed=1)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert convert(folder, tmp_path / "out") == 2
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    lines = (tmp_path / "out" / "offsets" / "0").read_text().splitlines()
    assert lines[:2] == ["v1", METADATA]
    assert [json.loads(line) for line in lines[2:]] == [{"a": {"0": 10, "1": 5}}, {"logOffset": 3}]
    assert (tmp_path / "out" / "sources" / "0" / "0").read_bytes() == b'\0v1\n{"a":{"0":0,"1":5}}'
    assert not list((tmp_path / "out").rglob("*.crc"))
    assert (tmp_path / "out" / "commits" / "0").exists()
    with pytest.raises(ConfigError, match="out exists"):
        convert(folder, tmp_path / "out")


def test_an_error_leaves_no_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = checkpoint(tmp_path / "c", [FIRST], [SECOND])
    (folder / "offsets" / "1").write_bytes(f"v1\n{METADATA}\n".encode() + b'{"\xe4":{"0":1},"$cores":2}')
    assert run(["checkpoint", "convert", str(folder), str(tmp_path / "new" / "out")]) == 1
    assert "c/offsets/1 is not UTF-8: " in capsys.readouterr().err
    assert list((tmp_path / "new").iterdir()) == []
    with pytest.raises(ConfigError, match="out is in the checkpoint itself"):
        convert(folder, folder / "out")
    assert not (folder / "out").exists()


def test_a_file_that_cannot_be_copied(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", [FIRST])
    (folder / "sources").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OttlaError, match=r"cannot copy .*/c: \[Errno 2\] No such file or directory: '.*/sources'"):
        convert(folder, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def plan(folder: Path) -> None:
    shutil.copyfile(folder / "offsets" / "1", folder / "offsets" / "2")


def purge(folder: Path) -> None:
    (folder / "offsets" / "0").unlink()


@pytest.mark.parametrize("change", [plan, purge])
@pytest.mark.parametrize("is_during", [True, False])
def test_a_query_that_runs_during_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], is_during: bool
) -> None:
    folder = checkpoint(tmp_path / "c", [FIRST], [SECOND])
    copytree, changes = shutil.copytree, [change]

    def copy(path: Any, to: str) -> None:
        if changes and Path(path).parent.name == "offsets":  # the directory has been listed
            changes.pop()(folder)
        shutil.copy2(path, to)

    def copy_of_changing(source: Any, target: Any, *of_directory_in_it: Any) -> None:
        if of_directory_in_it:
            copytree(source, target, *of_directory_in_it)
            return
        copytree(source, target, copy_function=copy if is_during else shutil.copy2)
        if changes:
            changes.pop()(folder)

    monkeypatch.setattr("shutil.copytree", copy_of_changing)
    with pytest.raises(IllegalStateError, match=r"the query of .*/c runs: .* \(stop the query first\)"):
        convert(folder, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_batch_that_is_removed_while_the_log_is_read(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", [FIRST], [SECOND])
    (folder / "offsets" / "0").unlink()
    (folder / "offsets" / "0").symlink_to(tmp_path / "nowhere")  # listed, and gone when it is opened
    assert [batch.number for batch in read_batches(folder)] == [1]


def test_without_an_answer_of_the_cluster_the_rows_have_no_lag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = checkpoint(tmp_path / "c", [{"b": {"0": 7}}], committed=1)
    command = ["checkpoint", "inspect", str(folder), "-b", "127.0.0.1:1", "-X", "request.timeout.ms=100", "--format", "json"]
    assert run(command) == 0
    printed = capsys.readouterr()
    assert [(row["offsets"], row["lag"]) for row in json.loads(printed.out)] == [("0:7", None)]
    assert printed.err.startswith("warning: the lag is not known: ")
    assert "127.0.0.1:1" in printed.err


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a checkpoint of a streaming query"):
        read_batches(tmp_path)
    folder = checkpoint(tmp_path / "c", [FIRST])
    checkpoint(tmp_path / "b", [FIRST])
    with pytest.raises(ConfigError, match=r"it has those of b, c: name one of these directories"):
        read_batches(tmp_path)
    (folder / "offsets" / "1").write_text("v9\n{}\n")
    with pytest.raises(ConfigError, match=r"offsets/1 is no offset log of version v1: it begins with 'v9'"):
        read_batches(folder)


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Broker() as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topics({"a": 2, "b": 1})
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send_many("b", [b"x"] * 9)
        folder = checkpoint(tmp_path / "c", [FIRST], [SECOND], committed=1)
        assert run(["checkpoint", "inspect", str(folder), "-b", broker.bootstrap_servers, "--format", "json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert [(row["batch"], row["topic"], row["state"], row["lag"], row["note"]) for row in rows] == [
            (0, "a", "processed", None, ""),
            (1, "a", "planned", None, "1 partition is new; the topic was recreated since then"),
            (1, "b", "planned", None, "the topic is new; the topic was recreated since then"),
        ]
        plain = {"b": {"0": 7}}
        folder = checkpoint(tmp_path / "d", [plain], committed=1)
        assert run(["checkpoint", "inspect", str(folder), "-b", broker.bootstrap_servers]) == 0
        assert "processed  2023-11-14 22:13:20       0  b      0:7" in capsys.readouterr().out
        assert run(["checkpoint", "inspect", str(folder), "-b", broker.bootstrap_servers, "--format", "json"]) == 0
        assert [row["lag"] for row in json.loads(capsys.readouterr().out)] == [2]
    assert run(["checkpoint", "inspect", str(folder)]) == 0
    assert "0:7" in capsys.readouterr().out
    assert run(["checkpoint", "convert", str(tmp_path / "c"), str(tmp_path / "out")]) == 0
    assert "changed the offsets of 2 batches" in capsys.readouterr().out
    assert run(["checkpoint", "convert", str(tmp_path / "c"), "file:/out"]) == 1
    assert "file:/out is a URL" in capsys.readouterr().err
    with RunDirectory(tmp_path / "job.py", str(tmp_path)).locked():
        assert run(["checkpoint", "convert", str(tmp_path / "c"), str(tmp_path / "other")]) == 1
    assert f"the job with the checkpoints {tmp_path} runs: stop it first" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
    assert run(["checkpoint", "convert", str(tmp_path / "c"), str(tmp_path / "out")]) == 1
    assert "out exists" in capsys.readouterr().err
