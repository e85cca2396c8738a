"""Regular expressions in subscriptions: checked with the heartbeat, resolved against the topics away from the event loop.

Owns the dialect: RE2, matched against whole names, as KIP-848 requires. Must not know groups. Invariant: the time of a resolution
is linear in the names, whatever the expression.
"""

from __future__ import annotations

from types import ModuleType

from ottla.coordinator.api_error import ApiError
from ottla.coordinator.effects import ResolvedRegexes, ResolveRegexes
from ottla.protocol import ErrorCode


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


def resolve_all(wanted: ResolveRegexes) -> ResolvedRegexes | None:
    """Return the names, sorted, that each expression matches as a whole; ``None`` if RE2 is not installed."""
    try:
        re2 = _re2()
    except ApiError:
        return None
    topics = {}
    for regex in wanted.regexes:
        compiled = re2.compile(regex, _options(re2))
        topics[regex] = tuple(sorted(name for name in wanted.names if compiled.fullmatch(name)))
    return ResolvedRegexes(wanted.version, topics)


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
