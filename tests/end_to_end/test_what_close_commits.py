"""The table of docs/consumer.md, "What is committed, and when", row by row: ways to end a ``Consumer``, and what is committed then.

Each program polls ten records, processes some and ends. A record that was not processed must never be committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ottla import Consumer, Record, Records, TopicPartition
from ottla.errors import ClosedError, IllegalStateError, WakeupError
from ottla.signals import stop_on_signals
from tests.end_to_end.programs import environment

PATIENCE = 60.0
"""Seconds: a limit for everything, on a busy machine."""
ALL = 10
"""Records of the topic; one poll returns all of them."""

MakeTopic = Callable[..., str]


class Broken(Exception):
    """The exception of a handler."""


class Reader:
    """A consumer of the topic, with helpers for its programs."""

    def __init__(self, served: str, topic: str, **settings: Any) -> None:
        self.tp = TopicPartition(topic, 0)
        self.group = f"group-of-{topic}"
        self.served = served
        quick: Any = {"auto_offset_reset": "earliest", "auto_commit_interval": 3600, "fetch_max_wait": 0.05}
        self.consumer = Consumer(bootstrap_servers=served, group_id=self.group, **quick, **settings)

    def ready(self) -> Consumer:
        self.consumer.assign([self.tp])
        return self.consumer

    def poll(self) -> Records:
        records = self.consumer.poll(PATIENCE)
        assert len(records) == ALL
        return records

    def fail_at_the_third(self, error: type[BaseException] = Broken) -> None:
        for record in self.poll():
            if record.offset == 3:
                raise error

    def drop(self) -> None:
        del self.consumer
        gc.collect()

    def committed(self) -> int | None:
        with Consumer(bootstrap_servers=self.served, group_id=self.group) as other:
            found = other.committed(self.tp)[self.tp]
        return None if found is None else found.offset


@pytest.fixture
def reader(served: str, topic: MakeTopic) -> Iterator[Reader]:
    made = Reader(served, topic(1, *(f"{number}:value" for number in range(ALL))))
    yield made
    if hasattr(made, "consumer"):
        made.consumer.close()


# -- all records are processed --------------------------------------------------------------------------------------------


def end_of_with(reader: Reader) -> None:
    with reader.ready():
        reader.poll()


def end_of_a_loop(reader: Reader) -> None:
    reader.ready()
    running = True
    while running:
        running = not reader.poll()
    reader.consumer.close()


def an_error_that_was_there_before(reader: Reader) -> None:
    """An application that retries inside an ``except`` block."""
    try:
        raise Broken
    except Broken:
        reader.ready()
        reader.poll()
        reader.consumer.close()


def an_error_that_was_there_before_a_with(reader: Reader) -> None:
    try:
        raise Broken
    except Broken:
        with reader.ready():
            reader.poll()


def an_error_that_was_dealt_with(reader: Reader) -> None:
    with reader.ready():
        for _ in reader.poll():
            with suppress(Broken):
                raise Broken


def an_error_that_was_caught_before_close(reader: Reader) -> None:
    reader.ready()
    with suppress(Broken):
        reader.fail_at_the_third()
    reader.consumer.close()


def leave_the_records_of_a_poll_by_break(reader: Reader) -> None:
    with reader.ready():
        for record in reader.poll():
            if record.offset == 3:
                break


def a_walk_over_all(reader: Reader) -> None:
    with reader.ready() as consumer:
        for record in consumer:
            if record.offset == ALL - 1:
                break


def a_wakeup_ends_the_next_poll(reader: Reader) -> None:
    with reader.ready() as consumer:
        try:
            while True:
                records = consumer.poll(PATIENCE)
                assert len(records) == ALL
                consumer.wakeup()
        except WakeupError:
            consumer.close()


def a_signal_ends_the_next_poll(reader: Reader) -> None:
    with reader.ready() as consumer, stop_on_signals(consumer):
        while True:
            for record in consumer.poll(PATIENCE):
                if record.offset == 3:
                    signal.raise_signal(signal.SIGTERM)


def a_signal_handler_closes_during_the_next_poll(reader: Reader) -> None:
    with handling_sigterm(lambda *arguments: reader.consumer.close()):
        reader.ready()
        reader.poll()
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with suppress(ClosedError):
            reader.consumer.poll(PATIENCE)


def a_signal_between_two_records_of_a_walk(reader: Reader) -> None:
    with reader.ready() as consumer, stop_on_signals(consumer):
        for record in consumer:
            if record.offset == ALL - 1:
                signal.raise_signal(signal.SIGTERM)


def another_thread_commits_and_closes(reader: Reader) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(reader.ready).result()
        pool.submit(reader.poll).result()
    reader.consumer.commit()
    reader.consumer.close()


def one_thread_for_everything(reader: Reader) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(end_of_with, reader).result()


def a_commit_and_then_an_error(reader: Reader) -> None:
    with suppress(Broken), reader.ready() as consumer:
        reader.poll()
        consumer.commit()
        raise Broken


def an_asynchronous_commit_and_then_an_error(reader: Reader) -> None:
    with suppress(Broken), reader.ready() as consumer:
        reader.poll()
        consumer.commit_async()
        raise Broken


@pytest.mark.parametrize(
    "end",
    [
        end_of_with,
        end_of_a_loop,
        an_error_that_was_there_before,
        an_error_that_was_there_before_a_with,
        an_error_that_was_dealt_with,
        an_error_that_was_caught_before_close,
        leave_the_records_of_a_poll_by_break,
        a_walk_over_all,
        a_wakeup_ends_the_next_poll,
        a_signal_ends_the_next_poll,
        a_signal_handler_closes_during_the_next_poll,
        a_signal_between_two_records_of_a_walk,
        another_thread_commits_and_closes,
        one_thread_for_everything,
        a_commit_and_then_an_error,
        an_asynchronous_commit_and_then_an_error,
    ],
)
def test_the_records_of_the_last_poll_are_committed(reader: Reader, end: Callable[[Reader], None]) -> None:
    end(reader)
    assert reader.committed() == ALL


# -- some records may be unprocessed ------------------------------------------------------------------------------------


def an_error_leaves_the_with(reader: Reader) -> None:
    with suppress(Broken), reader.ready():
        reader.fail_at_the_third()


def an_error_and_close_in_finally(reader: Reader) -> None:
    reader.ready()
    with suppress(Broken):
        try:
            reader.fail_at_the_third()
        finally:
            reader.consumer.close()


def ctrl_c_and_close_in_finally(reader: Reader) -> None:
    reader.ready()
    with suppress(KeyboardInterrupt):
        try:
            reader.fail_at_the_third(KeyboardInterrupt)
        finally:
            reader.consumer.close()


def sys_exit_in_a_with(reader: Reader) -> None:
    with suppress(SystemExit), reader.ready():
        reader.fail_at_the_third(SystemExit)


def close_in_except(reader: Reader) -> None:
    reader.ready()
    try:
        reader.fail_at_the_third()
    except Broken:
        reader.consumer.close()


def a_second_error_inside_the_handler_of_the_first(reader: Reader) -> None:
    reader.ready()
    try:
        raise ValueError
    except ValueError:
        with suppress(Broken):
            try:
                reader.fail_at_the_third()
            finally:
                reader.consumer.close()


def an_error_raised_from_another_one(reader: Reader) -> None:
    reader.ready()
    with suppress(RuntimeError):
        try:
            try:
                reader.fail_at_the_third()
            except Broken as error:
                raise RuntimeError from error
        finally:
            reader.consumer.close()


def an_error_inside_closing(reader: Reader) -> None:
    with suppress(Broken), closing(reader.ready()):
        reader.fail_at_the_third()


def an_error_inside_an_exit_stack(reader: Reader) -> None:
    with suppress(Broken), ExitStack() as stack:
        stack.enter_context(reader.ready())
        stack.enter_context(suppress(KeyError))
        reader.fail_at_the_third()


def an_error_with_close_as_the_callback_of_an_exit_stack(reader: Reader) -> None:
    with suppress(Broken), ExitStack() as stack:
        stack.callback(reader.ready().close)
        reader.fail_at_the_third()


def an_error_in_the_with_of_a_contextmanager(reader: Reader) -> None:
    @contextmanager
    def opened() -> Iterator[None]:
        reader.ready()
        try:
            yield
        finally:
            reader.consumer.close()

    with suppress(Broken), opened():
        reader.fail_at_the_third()


def values_of(reader: Reader) -> Iterator[Record]:
    with reader.ready():
        while True:
            yield from reader.poll()


def a_generator_is_closed(reader: Reader) -> None:
    with closing(values_of(reader)) as values:  # type: ignore[type-var]
        for record in values:
            if record.offset == 3:
                break


def an_error_while_a_generator_is_walked(reader: Reader) -> None:
    with suppress(Broken):
        for record in values_of(reader):
            if record.offset == 3:
                raise Broken


def another_thread_closes(reader: Reader) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(reader.ready).result()
        pool.submit(reader.poll).result()
        reader.consumer.close()


def a_thread_that_is_gone_has_polled(reader: Reader) -> None:
    for step in (reader.ready, reader.poll, reader.consumer.close):
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()


def calls_by_to_thread(reader: Reader) -> None:
    async def main() -> None:
        await asyncio.to_thread(reader.ready)
        with suppress(Broken):
            try:
                await asyncio.to_thread(reader.poll)
                raise Broken
            finally:
                await asyncio.to_thread(reader.consumer.close)

    asyncio.run(main())


def a_signal_ends_a_question_while_a_record_is_processed(reader: Reader) -> None:
    with reader.ready() as consumer, stop_on_signals(consumer):
        for record in reader.poll():
            if record.offset == 3:
                signal.raise_signal(signal.SIGTERM)
                consumer.end_offsets([reader.tp])


def a_signal_handler_closes_while_a_record_is_processed(reader: Reader) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # so signal.getsignal() does not return this handler
        reader.consumer.close()

    with handling_sigterm(stop):
        signal_at_the_third(reader)


def a_handler_with_any_arguments_closes_while_a_record_is_processed(reader: Reader) -> None:
    with handling_sigterm(lambda *arguments: reader.consumer.close()):
        signal_at_the_third(reader)


def signal_at_the_third(reader: Reader) -> None:
    reader.ready()
    for record in reader.poll():
        if record.offset == 3:
            signal.raise_signal(signal.SIGTERM)


@contextmanager
def handling_sigterm(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def a_poll_that_is_refused_inside_a_job(reader: Reader) -> None:
    with suppress(IllegalStateError), reader.ready() as consumer:
        reader.poll()
        with consumer.processing(limit=60):
            consumer.poll()


def it_is_not_closed_at_all(reader: Reader) -> None:
    reader.ready()
    reader.poll()
    thread = reader.consumer._network._thread
    with pytest.warns(ResourceWarning, match="was not closed"):
        reader.drop()
    thread.join(PATIENCE)


def assign_in_except(reader: Reader) -> None:
    with suppress(Broken):
        try:
            reader.ready()
            reader.fail_at_the_third(Broken)
        except Broken:
            reader.consumer.assign([reader.tp])
            reader.consumer.close()
            raise


def unsubscribe(reader: Reader) -> None:
    with reader.ready() as consumer:
        reader.poll()
        consumer.unsubscribe()


@pytest.mark.parametrize(
    "end",
    [
        an_error_leaves_the_with,
        an_error_and_close_in_finally,
        ctrl_c_and_close_in_finally,
        sys_exit_in_a_with,
        close_in_except,
        a_second_error_inside_the_handler_of_the_first,
        an_error_raised_from_another_one,
        an_error_inside_closing,
        an_error_inside_an_exit_stack,
        an_error_with_close_as_the_callback_of_an_exit_stack,
        an_error_in_the_with_of_a_contextmanager,
        a_generator_is_closed,
        an_error_while_a_generator_is_walked,
        another_thread_closes,
        a_thread_that_is_gone_has_polled,
        calls_by_to_thread,
        a_signal_ends_a_question_while_a_record_is_processed,
        a_signal_handler_closes_while_a_record_is_processed,
        a_handler_with_any_arguments_closes_while_a_record_is_processed,
        a_poll_that_is_refused_inside_a_job,
        it_is_not_closed_at_all,
        assign_in_except,
        unsubscribe,
    ],
)
def test_the_records_of_the_last_poll_are_not_committed(reader: Reader, end: Callable[[Reader], None]) -> None:
    end(reader)
    assert reader.committed() in (None, 0)


# -- partly processed ----------------------------------------------------------------------------------------------------


def leave_a_walk_by_break(reader: Reader) -> None:
    with reader.ready() as consumer:
        for record in consumer:
            if record.offset == 3:
                break


def leave_a_walk_by_an_error(reader: Reader) -> None:
    with suppress(Broken), reader.ready() as consumer:
        for record in consumer:
            if record.offset == 3:
                raise Broken


def leave_a_walk_by_an_error_and_close_in_finally(reader: Reader) -> None:
    with suppress(Broken):
        try:
            for record in reader.ready():
                if record.offset == 3:
                    raise Broken
        finally:
            reader.consumer.close()


def pause_in_a_walk_and_fail(reader: Reader) -> None:
    with suppress(Broken), reader.ready() as consumer:
        for record in consumer:
            if record.offset == 3:
                consumer.pause(reader.tp)
                raise Broken


def pause_and_fail(reader: Reader) -> None:
    with suppress(Broken), reader.ready() as consumer:
        reader.poll()
        consumer.pause(reader.tp)
        consumer.resume(reader.tp)
        raise Broken


def commit_some_and_fail(reader: Reader) -> None:
    with suppress(Broken), reader.ready() as consumer:
        for record in reader.poll():
            if record.offset == 3:
                raise Broken
            consumer.commit({reader.tp: record.offset + 1})


def commit_in_a_walk_and_fail(reader: Reader) -> None:
    with suppress(Broken), reader.ready() as consumer:
        for record in consumer:
            consumer.commit()
            if record.offset == 2:
                raise Broken


def commit_ahead_in_a_walk(reader: Reader) -> None:
    with reader.ready() as consumer:
        for record in consumer:
            if record.offset == 3:
                consumer.commit({reader.tp: 8})
                break


def commit_what_is_yet_to_come(reader: Reader) -> None:
    with reader.ready() as consumer:
        reader.poll()
        consumer.commit({reader.tp: 1_000})


def commit_what_is_yet_to_come_and_fail(reader: Reader) -> None:
    with suppress(Broken), reader.ready() as consumer:
        reader.poll()
        consumer.commit({reader.tp: 1_000})
        raise Broken


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (commit_ahead_in_a_walk, 8),
        (commit_what_is_yet_to_come, 1_000),
        (commit_what_is_yet_to_come_and_fail, 1_000),
        (leave_a_walk_by_break, 4),
        (leave_a_walk_by_an_error, 3),
        (leave_a_walk_by_an_error_and_close_in_finally, 3),
        (pause_in_a_walk_and_fail, 3),
        (pause_and_fail, 0),
        (commit_some_and_fail, 3),
        (commit_in_a_walk_and_fail, 3),
    ],
)
def test_the_records_processed_before_the_end_are_committed(reader: Reader, end: Callable[[Reader], None], expected: int) -> None:
    end(reader)
    assert reader.committed() == expected


@pytest.mark.parametrize("automatic", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_a_commit_in_on_revoke_covers_the_same_records_as_close(
    served: str, topic: MakeTopic, automatic: bool, fails: bool
) -> None:
    name = topic(1, *(f"{number}:value" for number in range(ALL)))
    reader = Reader(served, name, enable_auto_commit=automatic, group_protocol="consumer")
    offsets: list[int] = []

    def on_revoke(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        offsets.append(consumer.commit()[reader.tp].offset)

    with suppress(Broken), reader.consumer as consumer:
        consumer.subscribe([name], on_revoke=on_revoke)
        records = reader.poll()
        if fails:
            raise Broken
        assert records
    assert offsets == [0 if fails else ALL]
    assert reader.committed() == (0 if fails else ALL)


PROGRAM = """
import atexit, sys
from ottla import Consumer, TopicPartition

address, topic, group, end = sys.argv[1:]
consumer = Consumer(bootstrap_servers=address, group_id=group, auto_offset_reset="earliest", auto_commit_interval=3600)
atexit.register(consumer.close)
consumer.assign([TopicPartition(topic, 0)])
for record in consumer.poll(60):
    if record.offset == 3:
        exec(end)
"""


@pytest.mark.parametrize(("end", "stderr"), [("raise ValueError('not today')", "not today"), ("sys.exit('so far')", "so far")])
def test_close_at_exit_does_not_commit_the_records_of_the_last_poll(reader: Reader, end: str, stderr: str) -> None:
    command = [sys.executable, "-c", PROGRAM, reader.served, reader.tp.topic, reader.group, end]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment())
    assert stderr in done.stderr
    assert reader.committed() in (None, 0)


CLOSE_IN_A_THREAD = """
import sys, threading
from ottla import Consumer, TopicPartition

address, topic, group = sys.argv[1:]

def read():
    with Consumer(
        bootstrap_servers=address, group_id=group, auto_offset_reset="earliest", auto_commit_interval=3600
    ) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert consumer.poll(60)
        threading.main_thread().join()

threading.Thread(target=read).start()
"""


def test_a_thread_that_outlives_the_main_thread_commits_its_processed_records(reader: Reader) -> None:
    command = [sys.executable, "-c", CLOSE_IN_A_THREAD, reader.served, reader.tp.topic, reader.group]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment())
    assert done.returncode == 0, done.stderr
    assert reader.committed() == ALL


FIXTURES = """
import pytest
from ottla import Consumer, TopicPartition

@pytest.fixture
def consumer():
    with Consumer(
        bootstrap_servers={served!r}, group_id={group!r}, auto_offset_reset="earliest", auto_commit_interval=3600
    ) as consumer:
        consumer.assign([TopicPartition({topic!r}, 0)])
        yield consumer

def test_it(consumer):
    for record in consumer.poll(60):
        assert record.offset != {fails_at}
"""


@pytest.mark.parametrize(("fails_at", "expected"), [(3, 0), (ALL, ALL)])
def test_a_fixture_that_closes_after_a_failed_test(reader: Reader, tmp_path: Path, fails_at: int, expected: int) -> None:
    test = tmp_path / "test_it.py"
    test.write_text(FIXTURES.format(served=reader.served, group=reader.group, topic=reader.tp.topic, fails_at=fails_at))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment(), cwd=tmp_path)
    assert done.returncode == (fails_at < ALL), done.stdout + done.stderr
    assert (reader.committed() or 0) == expected


def test_the_log_says_why_the_last_records_are_not_committed(reader: Reader, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="ottla"), contextlib.suppress(Broken):
        an_error_and_close_in_finally(reader)
    assert "do not count as processed: Broken is being handled" in caplog.text
