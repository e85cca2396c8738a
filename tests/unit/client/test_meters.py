"""A meter may be read by any thread while one thread records."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from ottla.client.health.metrics import Meter
from ottla.types import Now


def test_a_reader_sees_each_value_as_a_whole_or_not_at_all() -> None:
    meter, seen = Meter(), set()
    now = Now(0, 0)

    def read(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code is Meter.record.__code__ and event in ("line", "return"):
            seen.add((meter.average(now), meter.minimum(now), meter.maximum(now), round(meter.rate(now) * 30)))
        return read

    before = sys.gettrace()
    sys.settrace(read)
    try:
        meter.record(5, now)
        meter.record(9, now)
    finally:
        sys.settrace(before)
    assert seen == {(0.0, None, 0.0, 0), (5.0, 5, 5, 1), (7.0, 5, 9, 2)}


def test_a_value_counts_for_two_windows() -> None:
    meter = Meter()
    for mono, value in ((0, 8), (30_000, 2), (30_001, 4)):
        meter.record(value, Now(mono, mono))
    assert (meter.average(Now(59_999, 0)), meter.maximum(Now(59_999, 0)), meter.minimum(Now(59_999, 0))) == (14 / 3, 8, 2)
    assert (meter.average(Now(60_000, 0)), meter.maximum(Now(60_000, 0)), meter.minimum(Now(60_000, 0))) == (3, 4, 2)
    assert (meter.average(Now(90_000, 0)), meter.maximum(Now(90_000, 0)), meter.minimum(Now(90_000, 0))) == (0, 0, None)
    assert (meter.count, meter.total) == (3, 14)
