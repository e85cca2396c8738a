"""White lists and black lists: the subscriptions of Kafka 0.8 by a regular expression.

Owns the rewriting of the expression, and the decision which topics it allows. Must not know which topics exist. Invariant: all
members of a group, Java's and ours, see the same topics in the registration of one member.

Source: ``kafka.consumer.TopicFilter`` and ``Topic.isInternal`` of Kafka 1.1.1. 0.8.2 knows only the first internal topic.
"""

from __future__ import annotations

import re

from ottla.java_regex import compile_java_pattern
from ottla.zookeeper.nodes import BLACK_LIST, WHITE_LIST

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})

_TRIMMED = "".join(map(chr, range(0x21)))
"""What ``String.trim()`` removes."""

_QUOTES_AROUND = re.compile(r"""^["']+|["']+$""")
"""Files of properties have them by mistake."""


class TopicFilter:
    """Which topics a member reads: those that match the pattern (white list), or all others (black list).

    ``pattern`` is a regular expression of Java, also as a list ``orders,payments.*``. Raises ``ConfigError`` if it is none, or if
    it may have another meaning here than in Java's members.
    """

    def __init__(self, pattern: str, kind: str = WHITE_LIST) -> None:
        rewritten = pattern.strip(_TRIMMED).replace(",", "|").replace(" ", "")
        self.pattern = _QUOTES_AROUND.sub("", rewritten)
        """The pattern as Java rewrites it, and registers it."""
        self.kind = kind
        """``WHITE_LIST`` or ``BLACK_LIST``."""
        self._compiled = compile_java_pattern(self.pattern)

    def __repr__(self) -> str:
        return f"<TopicFilter {self.kind} {self.pattern!r}>"

    def allows(self, topic: str, exclude_internal: bool) -> bool:
        """Whether the member reads a topic. ``exclude_internal``: its ``exclude.internal.topics``; each member uses its own."""
        is_listed = self._compiled.fullmatch(topic) is not None
        return is_listed is (self.kind != BLACK_LIST) and not (exclude_internal and topic in INTERNAL_TOPICS)
