"""docs/metrics.md agrees with the tables of metrics, and has each metric of Kafka's consumer and of its producer."""

from __future__ import annotations

import runpy
from fnmatch import fnmatch
from pathlib import Path

import pytest

from ottla.client.health.names import LEFT_OUT, NAMES
from ottla.client.produce import metrics as producer

ROOT = Path(__file__).parents[2]


def names_in(file: str) -> dict[tuple[str, str], set[tuple[str, ...]]]:
    """(group, name) of each metric -> its levels, as their tags."""
    found: dict[tuple[str, str], set[tuple[str, ...]]] = {}
    for line in Path(__file__).with_name(file).read_text(encoding="utf-8").splitlines()[1:]:
        group, name, tags = line.split()
        found.setdefault((group, name), set()).add(() if tags == "-" else tuple(tags.split(",")))
    return found


KAFKAS = names_in("kafka_consumer_metrics.txt")
KAFKAS_OF_PRODUCERS = names_in("kafka_producer_metrics.txt")


def test_the_page_agrees_with_the_table() -> None:
    page = runpy.run_path(str(ROOT / "tools" / "write_metrics_page.py"))["page"]()
    assert (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8") == page, "run python tools/write_metrics_page.py"


@pytest.mark.parametrize(("group", "name"), KAFKAS)
def test_each_metric_of_kafka_is_counted_or_left_out_for_a_reason(group: str, name: str) -> None:
    reasons = [why for pattern, why in LEFT_OUT.get(group, {}).items() if fnmatch(name, pattern)]
    row = NAMES.get(group, {}).get(name)
    assert (row is not None, len(reasons)) in ((True, 0), (False, 1))
    if row is not None:
        assert set(row.levels) == KAFKAS[group, name]


def test_other_metrics_are_marked_as_ours_and_every_omission_is_a_metric_of_kafka() -> None:
    # Kafka has these two metrics of requests per broker.
    by_node = {"request-latency-avg", "request-latency-max"}
    for group, rows in NAMES.items():
        assert {name for name in rows if (group, name) not in KAFKAS} - by_node == {name for name in rows if rows[name].ours}
    for group, names in LEFT_OUT.items():
        assert all(any(fnmatch(name, pattern) for of, name in KAFKAS if of == group) for pattern in names), group


@pytest.mark.parametrize(("group", "name"), KAFKAS_OF_PRODUCERS)
def test_each_metric_of_kafkas_producer_is_counted_or_left_out_for_a_reason(group: str, name: str) -> None:
    reasons = [why for pattern, why in producer.LEFT_OUT.get(group, {}).items() if fnmatch(name, pattern)]
    assert (name in producer.NAMES.get(group, {}), len(reasons)) in ((True, 0), (False, 1))


def test_a_producer_has_no_other_metrics_and_every_omission_is_a_metric_of_kafka() -> None:
    assert {(group, name) for group, names in producer.NAMES.items() for name in names} <= set(KAFKAS_OF_PRODUCERS)
    for group, names in producer.LEFT_OUT.items():
        assert all(any(fnmatch(name, pattern) for of, name in KAFKAS_OF_PRODUCERS if of == group) for pattern in names), group
