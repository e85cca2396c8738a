"""``ottla produce`` and ``ottla consume``."""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla import Consumer, Record, TopicPartition
from tests.end_to_end.programs import OTTLA, environment, ottla, started

pytestmark = pytest.mark.slow

Topic = Callable[..., str]
BUSY = 5.0
"""Seconds that a busy machine may take in addition."""


def consumed(*arguments: str, address: str) -> str:
    done = ottla("consume", *arguments, bootstrap_servers=address)
    assert (done.returncode, done.stderr) == (0, ""), arguments
    return done.stdout


def committed(group: str, address: str) -> int:
    """Return the sum of the committed offsets."""
    described = json.loads(ottla("group", "describe", group, "--format", "json", bootstrap_servers=address).stdout)
    return sum(row["committed"] or 0 for row in described["partitions"])


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_come_out_as_they_went_in(served: str, topic: Topic, codec: str) -> None:
    name = topic(1)
    lines = "k1:v1\nno key\nk2:v2:and more\n:empty key\n\n"
    before = time.time() * 1000
    produced = ottla("produce", "-t", name, "-K", ":", "-H", "a=1", "-H", "b=2", "-z", codec, bootstrap_servers=served, stdin=lines)
    assert (produced.returncode, produced.stdout, produced.stderr) == (0, "", "")
    text = consumed("-t", name, "-e", "-f", "%t %p %o [%k] [%s] %K %S %h %T\\n", address=served)
    rows = [line.rpartition(" ") for line in text.splitlines()]
    assert [row[0] for row in rows] == [
        f"{name} 0 0 [k1] [v1] 2 2 a=1,b=2",
        f"{name} 0 1 [] [no key] -1 6 a=1,b=2",
        f"{name} 0 2 [k2] [v2:and more] 2 11 a=1,b=2",
        f"{name} 0 3 [] [empty key] 0 9 a=1,b=2",
        f"{name} 0 4 [] [] -1 0 a=1,b=2",
    ]
    assert all(before <= int(row[2]) <= time.time() * 1000 for row in rows)


def test_values_and_headers_are_sent_unchanged(served: str, topic: Topic) -> None:
    name = topic(1)
    headers = [each for value in (b"a=1", b"a=2", b" s = x ", b"raw=\xff=", b"a=") for each in (b"-H", value)]
    produced = subprocess.run(
        [OTTLA, "produce", "-t", name, *headers],
        input=b" v \r\n\xff\x1b[1m\nlast\r",
        capture_output=True,
        timeout=60,
        env=environment(served),
    )
    assert (produced.returncode, produced.stderr) == (0, b"")
    with Consumer(bootstrap_servers=served) as consumer:
        consumer.assign([TopicPartition(name, 0)])
        consumer.seek_to_beginning()
        records: list[Record] = []
        while len(records) < 3:
            records += consumer.poll(10.0)
    assert [record.value for record in records] == [b" v \r", b"\xff\x1b[1m", b"last\r"]
    assert [record.key for record in records] == [None] * 3
    assert list(records[0].headers) == [("a", b"1"), ("a", b"2"), (" s ", b" x "), ("raw", b"\xff="), ("a", b"")]


@pytest.mark.parametrize(
    ("separator", "line", "key", "value"),
    [
        ("\\t", b"k\tv\tw", b"k", b"v\tw"),
        ("\\x3a\\x3A", b"k::v", b"k", b"v"),
        (os.fsdecode(b"\xff"), b"k\xffv", b"k", b"v"),
    ],
)
def test_separators_of_keys(served: str, topic: Topic, separator: str, line: bytes, key: bytes, value: bytes) -> None:
    name = topic(1)
    command = [OTTLA, "produce", "-t", name, "-K", separator]
    assert subprocess.run(command, input=line, timeout=60, env=environment(served)).returncode == 0
    read = subprocess.run(
        [OTTLA, "consume", "-t", name, "-e", "-f", os.fsdecode(b"%k\xff|%s")],
        capture_output=True,
        timeout=60,
        env=environment(served),
    )
    assert read.stdout == key + b"\xff|" + value


def test_a_line_that_is_too_long_is_named(served: str, topic: Topic) -> None:
    name = topic(1)
    lines = f"first\n{'x' * 3000}\nlast\n"
    ended = ottla("produce", "-t", name, "-X", "max.request.size=1000", bootstrap_servers=served, stdin=lines)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (1, 1)
    assert ended.stderr.startswith(f"error: topic {name}, line 2: ")
    assert ended.stderr.endswith("; 1 record was written\n")
    assert consumed("-t", name, "-e", address=served) == "first\n"


def test_refused_records_are_counted(served: str, topic: Topic) -> None:
    name = topic(1)
    assert ottla("topic", "alter", name, "--config", "max.message.bytes=1000", bootstrap_servers=served).returncode == 0
    ended = ottla("produce", "-t", name, bootstrap_servers=served, stdin=f"{'x' * 3000}\n")
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"error: 1 record not produced to {name}: ")


def test_where_reading_begins_and_ends(served: str, topic: Topic) -> None:
    name = topic(1, *(f"k:{number}" for number in range(10)))
    assert consumed("-t", name, "-e", "-f", "%s", address=served) == "0123456789"
    assert consumed("-t", name, "-e", "-o", "7", "-f", "%s", address=served) == "789"
    assert consumed("-t", name, "-e", "-o", "70", "-f", "%s", address=served) == ""
    assert consumed("-t", name, "-e", "-o", "end", address=served) == ""
    assert consumed("-t", name, "-c", "3", "-o", "beginning", "-f", "%s", address=served) == "012"


def test_a_group_goes_on_where_it_was(served: str, topic: Topic) -> None:
    name = topic(3, *(f"{number}:{number}" for number in range(9)))
    group = f"group-of-{name}"
    first = consumed("-t", name, "-g", group, "-c", "4", "-f", "%s ", address=served)
    assert committed(group, served) == 4
    rest = consumed("-t", name, "-g", group, "-e", "-f", "%s ", address=served)
    assert committed(group, served) == 9
    assert sorted((first + rest).split()) == [str(number) for number in range(9)]
    assert consumed("-t", name, "-g", group, "-e", address=served) == ""


def test_partitions_that_a_killed_member_still_has_are_named(served: str, topic: Topic) -> None:
    name = topic(2, *(f"{number}:{number}" for number in range(9)))
    group = f"group-of-{name}"
    with started("consume", "-t", name, "-g", group, "-o", "end", bootstrap_servers=served) as process:
        wait_until(lambda: assigned(group, served) == 2)
        process.kill()
    ended = ottla("consume", "-t", name, "-g", group, "-e", bootstrap_servers=served)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr == f"not read to the end, because other members of the group own them: {name}-0, {name}-1\n"


def assigned(group: str, address: str) -> int:
    """Return the number of partitions that the members own."""
    described = ottla("group", "describe", group, "--format", "json", bootstrap_servers=address)
    return sum(len(member["partitions"]) for member in json.loads(described.stdout)["members"]) if not described.returncode else 0


def test_a_group_without_offsets_may_begin_at_the_end(served: str, topic: Topic) -> None:
    name = topic(1, "k:old")
    assert consumed("-t", name, "-g", f"group-of-{name}", "-o", "end", "-e", address=served) == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_the_member_leaves_its_group(served: str, topic: Topic, number: signal.Signals) -> None:
    name = topic(1, "k:v")
    group = f"group-of-{name}"
    with started("consume", "-t", name, "-g", group, bootstrap_servers=served) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "v\n"
        process.send_signal(number)
        assert process.wait(10) == 0
    described = json.loads(ottla("group", "describe", group, "--format", "json", bootstrap_servers=served).stdout)
    assert (described["state"], described["members"]) == ("Empty", [])
    assert committed(group, served) == 1


def test_a_reader_that_has_had_enough_is_no_error(served: str, topic: Topic) -> None:
    name = topic(1, *(f"k:{'x' * 1000}" for _ in range(2000)))
    piped = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{OTTLA} consume -t {name} -e | head -n 1"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(served),
    )
    assert (piped.returncode, piped.stdout, piped.stderr) == (0, "x" * 1000 + "\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("in_group", [False, True])
def test_a_signal_ends_it_when_its_reader_has_stopped_reading(
    served: str, topic: Topic, number: signal.Signals, in_group: bool
) -> None:
    name = topic(1, *(f"k:{'x' * 1000}" for _ in range(2000)))
    group = f"group-of-{name}"
    with started("consume", "-t", name, *(["-g", group] if in_group else []), bootstrap_servers=served) as process:
        assert process.stdout is not None
        wait_until(lambda: is_full(process))
        began = time.monotonic()
        process.send_signal(number)
        assert process.wait(30) == 128 + number
        took = time.monotonic() - began
    assert took < 1.0 + BUSY, took
    if in_group:
        described = ottla("group", "describe", group, "--format", "json", bootstrap_servers=served)
        assert described.returncode == 0, described.stderr
        assert json.loads(described.stdout)["members"] == []
        assert committed(group, served) % 500 == 0  # whole polls, and not the one whose records could not be written


def is_full(process: subprocess.Popen[str]) -> bool:
    """Whether the pipe from the process is full."""
    assert process.stdout is not None
    waiting = array.array("i", [0])
    fcntl.ioctl(process.stdout, termios.FIONREAD, waiting)
    return waiting[0] >= fcntl.fcntl(process.stdout, fcntl.F_GETPIPE_SZ) - select.PIPE_BUF


def wait_until(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("in_group", [False, True])
def test_reading_does_not_bring_back_a_topic_that_is_deleted(served: str, topic: Topic, in_group: bool) -> None:
    name = topic(2, "k:v")
    more = ["-g", f"group-of-{name}"] if in_group else []
    with started("consume", "-t", name, "-X", "metadata.max.age.ms=200", *more, bootstrap_servers=served) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "v\n"
        assert ottla("topic", "delete", name, "--execute", bootstrap_servers=served).returncode == 0
        exit_code = process.wait(60)
        errors = process.communicate()[1]
    assert exit_code == 1
    assert name in errors.splitlines()[-1]
    assert "UNKNOWN_TOPIC" in errors.splitlines()[-1]
    assert name not in ottla("topic", "list", bootstrap_servers=served).stdout


def test_reading_creates_no_topic(served: str) -> None:
    for more in ([], ["-g", "readers-of-nothing"]):
        ended = ottla("consume", "-t", "never-made", "-e", *more, bootstrap_servers=served)
        assert (ended.returncode, ended.stdout) == (1, "")
        assert "never-made" in ended.stderr
    assert "never-made" not in ottla("topic", "list", bootstrap_servers=served).stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
def test_a_full_disk_ends_it_with_one_line_and_commits_nothing(served: str, topic: Topic) -> None:
    name = topic(1, "k:v")
    group = f"group-of-{name}"
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [OTTLA, "consume", "-t", name, "-g", group, "-e"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            env=environment(served),
        )
    assert (ended.returncode, ended.stderr) == (1, "error: cannot write to stdout: No space left on device\n")
    described = json.loads(ottla("group", "describe", group, "--format", "json", bootstrap_servers=served).stdout)
    assert described["partitions"] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["consume"],
        ["consume", "-t", "x", "-f", "%q"],
        ["consume", "-t", "x", "-o", "middle"],
        ["consume", "-t", "x", "-g", "g", "-o", "5"],
        ["consume", "-t", "x", "-o", "\u0663"],
        ["consume", "-t", "x", "-X", "group.id=g"],
        ["consume", "-t", "x", "-c", "0"],
        ["consume", "-t", "x", "-o", "9" * 5000],
        ["group", "reset-offsets", "x", "-o", "9" * 5000],
        ["group", "reset-offsets", "x", "-o", f"s@{2**63}"],
        ["group", "reset-offsets", "x", "-o", "s@\u0663"],
        ["consume", "-t", "x", "-X", "nothing"],
        ["produce"],
        ["produce", "-t", "x", "-z", "rar"],
        ["produce", "-t", "x", "-H", "nothing"],
        ["produce", "-t", "x", "-H", "=1"],
        ["produce", "-t", "x", "-K", ""],
        ["produce", "-t", "x", "-K", "\\n"],
        ["produce", "-t", "x", "-K", "a\nb"],
        ["produce", "-t", "x", "-z", "lz4", "-X", "compression.type=gzip"],
        ["produce", "-t", "x", "--acks", "1", "-X", "acks=all"],
        ["produce", "-t", "x", "--acks", "0"],
        ["produce", "-t", "x", "--arrow", "-", "-K", ":"],
        ["produce", "-t", "x", "--arrow", "-", "-H", "a=1"],
        ["produce", "-t", "x", "--arrow", ""],
        ["produce", "-t", "x", "-K", "\\q"],
        ["produce", "-t", "x", "-K", "\\"],
        ["nonsense"],
    ],
)
def test_bad_usage_is_exit_code_2_without_a_traceback(arguments: list[str]) -> None:
    ended = ottla(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["consume", "-t", "nowhere", "-e", "-X", "allow.auto.create.topics=false"], "nowhere"),
        (["consume", "-t", "x", "-X", "group.idd=1"], "group.id"),
        (["produce", "-t", "a/b"], "a/b"),
        (["produce", "-t", "x", "-X", "no.such.setting=1"], "no.such.setting"),
        (["produce", "-t", "x", "-X", "error_cb=print"], "error_cb"),
        (["produce", "-t", "x", "-X", "transactional.id=x"], "transactional.id"),
        (["produce", "-t", "x", "-X", "message.max.bytes=1"], "max.request.size"),
        (["produce", "-t", "x", "-X", "group.id=x"], "group.id"),
        (["produce", "-t", "x", "-X", "linger.ms=soon"], "linger.ms='soon'"),
        (["produce", "-t", "x", "-X", "acks=most"], "acks='most'"),
        (["produce", "-t", "x", "--arrow", "no-such-file"], "no-such-file: No such file"),
    ],
)
def test_an_error_is_one_line(served: str, arguments: list[str], said: str) -> None:
    ended = ottla(*arguments, bootstrap_servers=served, stdin="line\n")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("error: ")
    assert len(ended.stderr.splitlines()) == 1
    assert said in ended.stderr


def test_the_error_for_a_large_line_names_the_setting(served: str, topic: Topic) -> None:
    name = topic(1)
    ended = ottla("produce", "-t", name, bootstrap_servers=served, stdin=f"small\n{'a' * 2_000_000}\n")
    assert ended.returncode == 1
    assert f"topic {name}, line 2: it has more than the 1048576 bytes of max.request.size" in ended.stderr
    assert "with -X" in ended.stderr
    assert consumed("-t", name, "-e", address=served) == "small\n"


def test_a_record_without_a_key_in_a_compacted_topic(served: str) -> None:
    assert ottla("topic", "create", "compacted", "--config", "cleanup.policy=compact", bootstrap_servers=served).returncode == 0
    ended = ottla("produce", "-t", "compacted", bootstrap_servers=served, stdin="no key\n")
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: 1 record not produced to compacted: ")
    assert "see -K" in ended.stderr


def test_a_refused_record_ends_it_though_the_input_has_no_end(served: str) -> None:
    name = "endless"
    assert ottla("topic", "create", name, "--config", "max.message.bytes=200", bootstrap_servers=served).returncode == 0
    command = [OTTLA, "produce", "-t", name, "-b", served]
    with subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        deadline = time.monotonic() + 60
        with contextlib.suppress(BrokenPipeError):
            while process.poll() is None:
                assert time.monotonic() < deadline, "it goes on and says nothing"
                process.stdin.write(b"a" * 1_000 + b"\n")
                time.sleep(0.05)
        assert process.wait(60) == 1
        said = process.stderr.read()
    assert b"not produced to endless" in said
    assert b"stopped after line" in said


@pytest.mark.parametrize("command", ["produce", "consume"])
def test_no_broker_lists_the_address_and_the_reason(command: str) -> None:
    began = time.monotonic()
    ended = ottla(command, "-t", "x", "-b", "127.0.0.1:1", "-X", "request.timeout.ms=2000", stdin="line\n")
    assert ended.returncode == 1
    assert "127.0.0.1:1:" in ended.stderr
    assert time.monotonic() - began < 30
