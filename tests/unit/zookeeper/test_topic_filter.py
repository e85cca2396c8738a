"""White lists and black lists of Kafka 0.8: rewriting, and which topics they allow."""

from __future__ import annotations

import pytest

from ottla.client.cluster import patterns
from ottla.errors import ConfigError
from ottla.zookeeper.nodes import BLACK_LIST, WHITE_LIST
from ottla.zookeeper.topic_filter import TopicFilter


@pytest.mark.parametrize(
    ("given", "rewritten"),
    [
        ("orders", "orders"),
        (" orders , payments.* \t", "orders|payments.*"),
        ("\"'orders|a b'\"", "orders|ab"),
        ("it's", "it's"),
        ("[a,b]", "[a|b]"),
        ("", ""),
    ],
)
def test_a_pattern_is_rewritten_as_java_does(given: str, rewritten: str) -> None:
    topic_filter = TopicFilter(given)
    assert topic_filter.pattern == rewritten
    assert TopicFilter(topic_filter.pattern).pattern == rewritten


def test_a_white_list_allows_what_it_matches_in_full_and_a_black_list_all_else() -> None:
    topics = ["orders", "orders-eu", "payments", "__consumer_offsets"]
    white, black = (TopicFilter("orders.?,pay.*", kind) for kind in (WHITE_LIST, BLACK_LIST))
    assert [topic for topic in topics if white.allows(topic, exclude_internal=False)] == ["orders", "payments"]
    assert [topic for topic in topics if black.allows(topic, exclude_internal=False)] == ["orders-eu", "__consumer_offsets"]


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
@pytest.mark.parametrize(("pattern", "kind"), [(".*", WHITE_LIST), ("x", BLACK_LIST)])
def test_internal_topics_can_be_excluded(topic: str, pattern: str, kind: str) -> None:
    topic_filter = TopicFilter(pattern, kind)
    assert topic_filter.allows(topic, exclude_internal=False)
    assert not topic_filter.allows(topic, exclude_internal=True)
    assert topic_filter.allows(topic + "2", exclude_internal=True)


def test_a_rewritten_pattern_that_cannot_be_used_raises() -> None:
    with pytest.raises(ConfigError, match=r"the Java pattern 'a\|\|b\|\(' cannot be used: '\(' at position 5"):
        TopicFilter("a,,b,(")


@pytest.mark.parametrize(
    ("pattern", "cause", "hint"),
    [
        ("orders{1,2}", "the Java pattern 'orders{1|2}' cannot be used: '{1|2}' at position 6", "write a|aa instead of a{1,2}"),
        ("a,(b", "the Java pattern 'a|(b' cannot be used: '(' at position 2", "the parentheses do not match"),
    ],
)
def test_the_error_shows_the_pattern_that_the_user_has_written(pattern: str, cause: str, hint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        patterns.checked(pattern, "zookeeper")
    text = f"in the pattern {pattern!r} a comma separates alternatives, as in the topic filters of Kafka 0.8: {cause}"
    assert raised.value.args == (text,)
    assert raised.value.hint == hint
