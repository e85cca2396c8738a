"""docs/metrics.md agrees with the table of metrics, and has each metric of Kafka's consumer."""

from __future__ import annotations

import runpy
from fnmatch import fnmatch
from pathlib import Path

import pytest

from ottla.client.health.names import LEFT_OUT, NAMES

ROOT = Path(__file__).parents[2]
KAFKAS: dict[tuple[str, str], set[tuple[str, ...]]] = {}
for line in Path(__file__).with_name("kafka_consumer_metrics.txt").read_text(encoding="utf-8").splitlines()[1:]:
    group, name, tags = line.split()
    KAFKAS.setdefault((group, name), set()).add(() if tags == "-" else tuple(tags.split(",")))


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
