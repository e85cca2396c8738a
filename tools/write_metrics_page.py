"""Write docs/metrics.md from the table of metrics in ``ottla.client.health.names``: ``python tools/write_metrics_page.py``.

A test compares the page with what this would write.
"""

from __future__ import annotations

from pathlib import Path

from ottla.client.health.names import LEFT_OUT, NAMES, Meaning

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"

OPENING = """# The metrics of a consumer

This page is written by `tools/write_metrics_page.py` from the one table of metrics.

`consumer.metrics()` gives what a consumer counts, as a dictionary from `MetricName(name, group, tags)` to a number, from any
thread. The names are those of Kafka's own consumer (4.3), and so is what they say, but for what is said here. Averages, maxima and
rates are those of the last half to whole minute; where nothing happened they are 0 (Kafka's are NaN). Times are milliseconds, but
for `...-seconds-ago` and `...-ns-total`. A metric that Kafka has of the client, of each topic and of each partition has the tags
`topic` and `partition` where it is about one.

For Prometheus (`ottla.health.serve`, `ottla consume --health-port`, or `PrometheusCollector` in a registry of your own) the group
comes first and dashes are underscores: `records-lag-max` of `consumer-fetch-manager-metrics` is
`kafka_consumer_fetch_manager_records_lag_max`, with the labels `group_id`, `topic` and `partition`. What has no label `topic` is of
the whole client, so leave it out of sums (`{topic!=""}`). `ottla_consumer_live`, `ottla_consumer_ready`, `ottla_consumer_healthy`
and `ottla_partition_stands_still_seconds` are of [health](consumer.md#health).

Counting costs by requests, polls and fetched partitions; no record costs anything.
"""

LEFT_OUT_OPENING = """
## What Kafka's consumer counts and Ottla does not

| group | metric | why not |
|---|---|---|
"""


def row(name: str, row: Meaning) -> str:
    """One line of a table."""
    levels = ", ".join(level[-1] if level else "client" for level in row.levels)
    return f"| `{name}` | {levels} | {row.text}{'. Not one of Kafka' + chr(39) + 's' if row.ours else ''} |\n"


def page() -> str:
    """The whole page."""
    parts = [OPENING]
    for group, rows in NAMES.items():
        parts.append(f"\n## `{group}`\n\n| metric | of each | what it says |\n|---|---|---|\n")
        parts += [row(name, meaning) for name, meaning in rows.items()]
    parts.append(LEFT_OUT_OPENING)
    parts += [f"| `{group}` | `{name}` | {why} |\n" for group, names in LEFT_OUT.items() for name, why in names.items()]
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
