"""The patterns of members, which are matched with the topics' names away from the event loop.

Owns the times at which they are matched. Must not know the syntax of a pattern. Invariant: a check waits until the patterns of all
members are matched with the present topics.
"""

from __future__ import annotations

from ottla.coordinator.central.events import RegexResolutionEnded, RegexResolutionStarted
from ottla.coordinator.central.group import CentralGroup
from ottla.coordinator.central.machine import Draft
from ottla.coordinator.decision import TopicImage
from ottla.coordinator.effects import ResolvedRegexes, ResolveRegexes
from ottla.zookeeper.topic_filter import INTERNAL_TOPICS


def is_resolution_due(group: CentralGroup, topics: TopicImage) -> bool:
    """Whether patterns must be matched: there are new ones, or topics have changed."""
    patterns = group.patterns
    return bool(patterns) and (group.regex_version != topics.version or not patterns <= group.regexes.keys())


def start_resolution(draft: Draft, topics: TopicImage) -> None:
    """Match the patterns, unless that is being done."""
    group = draft.group
    if group.is_resolving:
        return
    names = tuple(name for name in topics.names() if name not in INTERNAL_TOPICS)
    draft.apply(RegexResolutionStarted(group.group_id))
    draft.add(ResolveRegexes(group.group_id, tuple(sorted(group.patterns)), names, topics.version))


def end_resolution(draft: Draft, matches: ResolvedRegexes | None) -> None:
    """Note which topics the patterns match; ``None``: that failed."""
    if draft.group.is_resolving:
        draft.apply(RegexResolutionEnded(draft.group.group_id, matches))
