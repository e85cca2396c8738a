"""Regular expressions in subscriptions: checked with the heartbeat, resolved against the topics away from the event loop.

Owns the dialect (RE2, matched against whole names, as KIP-848 requires) and the times at which expressions are resolved. Must not
know requests. Invariant: the time of a resolution is linear in the names, whatever the expression.
"""

from __future__ import annotations

from types import ModuleType

from ottla.coordinator.consumer.group import ConsumerGroup
from ottla.coordinator.consumer.group_epoch import bump_epoch_if_changed
from ottla.coordinator.consumer.machine import ConsumerGroupDraft, RegexResolutionEnded, RegexResolutionStarted
from ottla.coordinator.decision import GroupContext, Result
from ottla.coordinator.effects import ApiError, ResolvedRegexes, ResolveRegexes
from ottla.coordinator.events import ResolvedRegexUpdated
from ottla.protocol import ErrorCode
from ottla.protocol.group_records import ConsumerGroupRegularExpressionValue
from ottla.types import Now


def check_regex(regex: str) -> None:
    """Raise ``ApiError`` for an expression that RE2 does not accept: bad syntax, or one that needs backtracking, like ``\\\\1``."""
    re2 = _re2()
    try:
        re2.compile(regex, _options(re2))
    except re2.error as error:
        reason = error.args[0] if error.args else "no reason given"
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ApiError(
            ErrorCode.invalid_regular_expression, f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {text}."
        ) from None


def resolve_all(request: ResolveRegexes) -> ResolvedRegexes | None:
    """Return the names, sorted, that each expression matches as a whole; ``None`` if RE2 is not installed."""
    try:
        re2 = _re2()
    except ApiError:
        return None
    topics = {}
    for regex in request.regexes:
        compiled = re2.compile(regex, _options(re2))
        topics[regex] = tuple(sorted(name for name in request.names if compiled.fullmatch(name)))
    return ResolvedRegexes(request.version, topics)


def is_resolution_due(group: ConsumerGroup, coordinator: GroupContext, now: Now) -> bool:
    """Whether regular expressions must be resolved: there are new ones, topics have changed, or the refresh interval has passed."""
    if not group.regex_subscribers or group.resolving:
        return False
    if group.regex_version != coordinator.topics.version or not group.regex_subscribers.keys() <= group.regexes.keys():
        return True
    resolved_at = min((resolved.timestamp for resolved in group.regexes.values()), default=0)
    return not _is_recent(coordinator, resolved_at, now)


def resolve_if_due(draft: ConsumerGroupDraft, coordinator: GroupContext) -> None:
    """Start the resolution of the regular expressions if it is due."""
    group = draft.group
    if is_resolution_due(group, coordinator, draft.now):
        regexes = tuple(sorted(group.regex_subscribers))
        draft.apply(RegexResolutionStarted(group.group_id))
        draft.resolve_regexes(
            ResolveRegexes(group.group_id, regexes, tuple(coordinator.topics.names()), coordinator.topics.version)
        )


def regexes_resolved(coordinator: GroupContext, group: ConsumerGroup, matches: ResolvedRegexes | None, now: Now) -> Result:
    """Store the topics that regular expressions match. ``None``: the resolution failed, and the next heartbeat starts it again."""
    draft = ConsumerGroupDraft(group, now)
    draft.apply(RegexResolutionEnded(group.group_id, None if matches is None else matches.version))
    if matches is None:
        return draft.result()
    changed = False
    for regex in sorted(group.regex_subscribers.keys() & matches.topics.keys()):
        old, topics = group.regexes.get(regex), matches.topics[regex]
        changed = changed or topics != (old.topics if old is not None else ())
        if not _is_stored(coordinator, old, topics, now):
            value = ConsumerGroupRegularExpressionValue(topics=topics, version=matches.version, timestamp=now.wall)
            draft.apply(ResolvedRegexUpdated(group.group_id, regex, value))
    if changed:
        bump_epoch_if_changed(draft, coordinator.topics, changed=True)
    return draft.result()


def _is_stored(
    coordinator: GroupContext, old: ConsumerGroupRegularExpressionValue | None, topics: tuple[str, ...], now: Now
) -> bool:
    """Whether the last record has the same topics and a recent timestamp, so that it need not be written again."""
    if old is None or old.topics != topics:
        return False
    return _is_recent(coordinator, old.timestamp, now)


def _is_recent(coordinator: GroupContext, timestamp: int, now: Now) -> bool:
    """Whether a resolution is younger than the refresh interval. A timestamp in the future dates from before the clock was set back
    and does not count as recent.
    """
    return 0 <= now.wall - timestamp <= coordinator.config.group_consumer_regex_refresh_interval_ms


def _options(re2: ModuleType) -> object:
    options = re2.Options()
    options.log_errors = False
    return options


def _re2() -> ModuleType:
    try:
        import re2
    except ImportError:
        raise ApiError(
            ErrorCode.invalid_regular_expression,
            "This broker cannot match regular expressions: RE2 is missing. Install it with: pip install 'ottla[broker]'",
        ) from None
    return re2  # type: ignore[no-any-return]
