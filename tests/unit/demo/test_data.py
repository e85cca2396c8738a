"""The flights as messages."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from ottla.demo import data

pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def flights() -> data.Flights:
    return data.load(60_000)


def test_a_message_for_each_row_with_the_carrier_as_its_key(flights: data.Flights) -> None:
    messages = list(flights.messages())
    assert len(messages) == len(flights) == 60_000
    rows = [json.loads(message.value) for message in messages]
    assert [row["carrier"].encode() for row in rows] == [message.key for message in messages]
    assert [[("origin", row["origin"].encode())] for row in rows] == [message.headers for message in messages]
    assert sum(row["distance"] for row in rows) == flights.distance
    assert sum(row["dep_delay"] or 0 for row in rows) == flights.departure_delay
    assert sum(row["dep_delay"] is not None for row in rows) == flights.departed
    assert sum(flights.by_carrier.values()) == 60_000


def test_missing_values_are_null_and_whole_numbers_stay_whole(flights: data.Flights) -> None:
    cancelled = next(row for row in map(json.loads, flights.rows) if row["dep_time"] is None)
    assert cancelled["dep_delay"] is None
    first = json.loads(flights.rows[0])
    assert (first["dep_time"], first["dep_delay"], first["tailnum"]) == (517, 2, "N14228")
    assert isinstance(first["dep_time"], int)
    assert not any("NaN" in row for row in flights.rows)


def test_the_timestamp_is_the_scheduled_departure_in_utc(flights: data.Flights) -> None:
    for row, timestamp in zip(map(json.loads, flights.rows[::997]), flights.timestamps[::997], strict=True):
        hour, minute = divmod(row["sched_dep_time"], 100)
        local = datetime(row["year"], row["month"], row["day"], hour, minute, tzinfo=ZoneInfo("America/New_York"))
        assert timestamp == int(local.timestamp() * 1000)
        assert datetime.fromtimestamp(timestamp / 1000, UTC).strftime("%Y-%m-%dT%H:00:00Z") == row["time_hour"]


def test_the_keys_of_the_joined_tables_are_there_once() -> None:
    assert not data.read_table("airlines")["carrier"].duplicated().any()
    assert not data.read_table("airports")["faa"].duplicated().any()
    assert not data.read_table("weather").duplicated(["origin", "time_hour"]).any()
