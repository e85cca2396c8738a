"""The patterns of ``subscribePattern``: what Java and Python have in common, and nothing else."""

from __future__ import annotations

import pytest

from ottla.errors import ConfigError
from ottla.spark.patterns import compiled

COMMON = [
    ("orders", "old-orders", True),
    ("orders", "order", False),
    ("^orders$", "orders-eu", False),
    (r"^orders-\d{2,}$", "orders-12", True),
    (r"(?i)ORDERS", "orders", True),
    (r"(?i:ORD)ers", "orders", True),
    (r"^(?!_).*\.v[12]$", "a.v2", True),
    (r"^(ab)\1$", "abab", True),
    (r"[^\w.-]", "orders-eu.1", False),
    (r"^a*+b", "aab", True),
    (r"(?<=-)eu", "orders-eu", True),
    (r"\x61\u0062", "ab", True),
    (r"^[-a]+$", "a-a", True),
    ("^a{2}$", "aa", True),
]


@pytest.mark.parametrize(("pattern", "topic", "is_found"), COMMON)
def test_a_pattern_is_searched_for(pattern: str, topic: str, is_found: bool) -> None:
    assert (compiled(pattern).search(topic) is not None) is is_found


@pytest.mark.parametrize(
    ("pattern", "position"),
    [
        (r"a\Qb\E", 2), (r"\p{Alpha}", 1), (r"\h", 1), (r"\v", 1), (r"a\z", 2), (r"\0", 1), (r"(a)\12", 4), (r"\cA", 1), ("\\", 1),
        ("(?<name>a)", 1), ("(?P<name>a)", 1), ("a(?i)b", 2), ("(?x)a b", 1), ("(?u)a", 1), ("(?#b)a", 1), ("(a)(?(1)b)", 4),
        ("a{,2}", 2), ("{", 1), ("a{b", 2), (r"\x4", 1), ("[]a]", 2), ("[^]a]", 3), ("[a[b]]", 3), ("[a&&b]", 3), ("[a--b]", 3),
        (r"[\b]", 2), (r"[\p{L}]", 2), (r"[\Qa\E]", 2),
    ],
)  # fmt: skip
def test_what_java_understands_differently_is_refused_with_its_position(pattern: str, position: int) -> None:
    with pytest.raises(ConfigError, match=f"option subscribePattern has .* at character {position} of .* differently"):
        compiled(pattern)


@pytest.mark.parametrize("pattern", ["a(b", "a**", "[z-a]", "(?<=a+)b", "a{99999999999999}", "[a", r"\1", "a{3}{2}"])
def test_what_python_cannot_compile_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"option subscribePattern is not a regular expression: .* at character \d+ of"):
        compiled(pattern)
