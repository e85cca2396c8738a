"""Signals end loops between two polls; afterwards the previous handlers are restored."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time

import pytest

from ottla.errors import WakeupError
from ottla.signals import STOP_SIGNALS, Interrupted, recorded_signals, stop_on_signals, wait_for_signal


class Sleeper:
    """A stand-in for a consumer: after ``wakeup()`` the next call raises."""

    def __init__(self) -> None:
        self._woken = False

    def wakeup(self) -> None:
        self._woken = True

    def poll(self) -> None:
        if self._woken:
            self._woken = False
            raise WakeupError


@pytest.fixture(autouse=True)
def handlers_are_restored() -> object:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    yield
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_the_current_records_are_finished_and_the_next_poll_ends_the_with(number: signal.Signals) -> None:
    consumer, handled = Sleeper(), []
    with stop_on_signals(consumer) as stop:
        while True:
            consumer.poll()
            os.kill(os.getpid(), number)
            handled.append("finished")
    assert handled == ["finished"]
    assert stop
    assert stop.signal is number


def test_a_wakeup_without_a_signal_raises() -> None:
    consumer = Sleeper()
    with pytest.raises(WakeupError), stop_on_signals(consumer):  # noqa: PT012
        consumer.wakeup()
        consumer.poll()


def test_a_second_signal_calls_the_previous_handler() -> None:
    with pytest.raises(KeyboardInterrupt), stop_on_signals(Sleeper()):  # noqa: PT012
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(60)


def test_two_signals_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with stop_on_signals(Sleeper()) as stop:
            signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
            for number in STOP_SIGNALS:
                signal.raise_signal(number)  # to this thread: of those sent to the process, another thread may take one early
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            assert stop.signal is signal.SIGINT
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
    assert lost == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_recorded_signal_calls_wake_and_check_raises(number: signal.Signals, code: int) -> None:
    woken = queue.SimpleQueue[str]()
    with recorded_signals() as stop:
        stop.wake = lambda: woken.put("woken")
        stop.check()
        os.kill(os.getpid(), number)
        assert woken.get(timeout=60) == "woken"
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted) as raised:
            stop.check()
    assert woken.empty()
    assert raised.value.exit_code == code
    assert str(raised.value) == number.name


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_waiting_for_a_signal(number: signal.Signals) -> None:
    usual = signal.getsignal(number)

    def send() -> None:
        while signal.getsignal(number) is usual:  # it would end the tests
            time.sleep(0.001)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    assert wait_for_signal() is number
    sender.join()


@pytest.mark.parametrize("number", [*STOP_SIGNALS, signal.SIGHUP])
def test_signals_are_handled_before_the_announcement(number: signal.Signals) -> None:
    usual, during = signal.getsignal(number), []

    def announce() -> None:
        during.append(signal.getsignal(number))
        if during[0] is not usual:  # it would end the tests
            os.kill(os.getpid(), number)

    assert wait_for_signal(announce=announce) is number
    assert signal.getsignal(number) is usual


def test_an_ignored_sighup_does_not_end_the_wait() -> None:
    usual = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:

        def announce() -> None:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)

        assert wait_for_signal(announce=announce) is signal.SIGTERM
    finally:
        signal.signal(signal.SIGHUP, usual)


def test_an_exception_of_meanwhile_ends_the_wait() -> None:
    with pytest.raises(ZeroDivisionError):
        wait_for_signal(meanwhile=lambda: 1 / 0)
