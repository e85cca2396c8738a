"""Write docs/metrics.md from the tables of metrics of consumers and of producers: ``python tools/write_metrics_page.py``.

A test compares the page with this tool's output.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ottla.client.health.names import LEFT_OUT, NAMES, Meaning
from ottla.client.produce import metrics as producer

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"

OPENING = """# Metrics

This page is written by `tools/write_metrics_page.py` from the tables of metrics. It begins with those of a consumer; [those of a
producer](#the-metrics-of-a-producer) follow. Those of jobs of Spark are in [pipelines.md](pipelines.md#metrics).

## The metrics of a consumer

`consumer.metrics()` returns a consumer's metrics, as a dictionary from `MetricName(name, group, tags)` to a number, from any
thread. Names and meanings are those of Kafka's own consumer (4.3), except where this page says otherwise. Averages, maxima and
rates cover the last 30 to 60 seconds; if nothing happened they are 0 (Kafka's are NaN). Times are milliseconds, except
`...-seconds-ago` and `...-ns-total`. A metric of a topic or a partition has the tags `topic` and `partition`.

For Prometheus (`ottla.health.serve`, `ottla consume --health-port`, or `PrometheusCollector` in your own registry) the group
comes first and dashes become underscores: `records-lag-max` of `consumer-fetch-manager-metrics` is
`kafka_consumer_fetch_manager_records_lag_max`, with the labels `group_id`, `topic` and `partition`. Without the label `topic` a
metric is of the whole client, so exclude it from sums (`{topic!=""}`). `ottla_consumer_live`, `ottla_consumer_ready`,
`ottla_consumer_healthy` and `ottla_partition_stands_still_seconds` come from [health](consumer.md#health).

Metrics cost time per request, poll and fetched partition, but not per record.
"""

PRODUCER_OPENING = """
## The metrics of a producer

`producer.metrics()` returns those of a producer in the same form. Names and meanings are those of Kafka's own producer (4.3);
`producer-topic-metrics` have the tag `topic`. Metrics cost time per batch and request, but not per record.
"""


def left_out(client: str, rows: Mapping[str, Mapping[str, str]]) -> str:
    """Return the section about the metrics of one of Kafka's clients that Ottla does not have."""
    head = f"\n### Metrics of Kafka's {client} that Ottla does not have\n\n| group | metric | why not |\n|---|---|---|\n"
    return head + "".join(f"| `{group}` | `{name}` | {why} |\n" for group, names in rows.items() for name, why in names.items())


def row(name: str, row: Meaning) -> str:
    """Return one row of a table."""
    levels = ", ".join(level[-1] if level else "client" for level in row.levels)
    return f"| `{name}` | {levels} | {row.text}{'. Only in Ottla' if row.ours else ''} |\n"


def page() -> str:
    """Return the text of the page."""
    parts = [OPENING]
    for group, rows in NAMES.items():
        parts.append(f"\n### `{group}`\n\n| metric | per | meaning |\n|---|---|---|\n")
        parts += [row(name, meaning) for name, meaning in rows.items()]
    parts += [left_out("consumer", LEFT_OUT), PRODUCER_OPENING]
    for group, texts in producer.NAMES.items():
        parts.append(f"\n### `{group}`\n\n| metric | meaning |\n|---|---|\n")
        parts += [f"| `{name}` | {text} |\n" for name, text in texts.items()]
    parts.append(left_out("producer", producer.LEFT_OUT))
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
