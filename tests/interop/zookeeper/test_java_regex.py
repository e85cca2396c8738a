"""Patterns and topic filters on a real JVM: what is accepted matches the same topics, and what Java refuses is refused."""

from __future__ import annotations

import json
import random
import string
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ottla.errors import ConfigError
from ottla.java_regex import compile_java_pattern
from ottla.zookeeper.nodes import BLACK_LIST, WHITE_LIST
from ottla.zookeeper.topic_filter import INTERNAL_TOPICS, TopicFilter
from tests.interop.real_kafka import FETCH_TIMEOUT, KafkaTool, run_tool

pytestmark = pytest.mark.timeout(120)

PROGRAM = Path(__file__).parents[3] / "tools" / "OldTopicFilters.java"
VERSION = "1.1.1"
PATTERNS = 12_000
TOPICS = (
    *("a", "b", "ab", "abc", "aab", "A", "Ab", "B.c", "a-b", "a_b", "a.b", "0", "1a", "a1", "10", "-", "_", "b-1", "aaa", "aAaA"),
    *("t", "n", "orders", "orders-1", "Orders.EU", "ORDERS_eu", "k", "K", "s", "S", "z", "w", "d", "Q"),
    *INTERNAL_TOPICS,
)

LONG_TOPICS = ("x" * 249, "ab" * 100)
"""Not for random patterns, which may take exponential time."""

_CONSTRUCTS = r"""
(a|b)*|c  a+?  a??b  a{2}  a{1,}  a{1,2}?  .*  (?i)orders.*  (?i:o)rders  (?-i:a)  (?i-s:A)  (?s).*  (?m)^a$  (?im)A|B  ^a$
\Aa\b  \Ba  \w+  \W  \d\D  \s  \S+  [abc]  [^abc]  [a-c]  [\w.]+  [\w-]+  [-a]+  [a-]+  [^-a]  [a\-b]+  [\]a]  [\[a]  [.]  [|]
[a^]  [$a]  [(a)]+  [*+?{}]  a\.b  a\-b  a\_b  \x61  \u0061  \t|a  (?:a|b)+  (?=a).*  (?!a).*  .*(?<=b)  .*(?<!b)  (?<=a)b  ()
a|  |a  a||b  (?:)  ((a))  ]  }  a}  é|a  (?i)\u017f|\u212a  (?i)[\u017f\u212a]+  [é-ü]|a  [\x61-\x63]+  \é|a  (?i)[Z-a]+
(?i)[^a]  (?i)[A-C]+  😀*a  [😀a]+  (?=a)*a  (?!b)+a  (a*)*  (a|b*)+  (a?){2,3}b  (|a)+b  (?:(?i)a)  a(?i)b  \p{Lu}  \P{Lu}a
\pL  \Qa.b\E  \Qa  \E  [a&&b]  [a-z&&[^b]]  (?<name>a)  \k<name>  \h  \H  \R  \v  \V  \X  \z  \Z  a\z  \G  \07  \0141  \x{61}
\x6  \u61  \ud83d\ude00  \cA  \e  \N{DIGIT  ZERO}  (?d)a  (?u)a  (?U)a  (?x)a  (?x:  a  )  (?P<n>a)  (?P=n)  (?P>n)  (?(1)a|b)
(a)\1  (a)\2  \1  a++  a*+  a?+  a{2}+  (?>a|ab)b  (?#a)a  a{,3}  a{  a{2  a{x}  {2}  a{2,1}  a{1001}  a{2}{3}  a**  a+*  a*??
*a  +  ?  |*  (*a)  ^*  $?  \b+  (  )  (a  a)  [  []  [a  []a]  [^]  [^]a]  [a[b]]  [a[b]c]  [a-c-e]  [\w-z]  [a-\w]  [z-a]
[--a]  [a--]  [+--]  [a-]  [a~~b]  [a||b]  [\b]  [\A]  [\1]  [\01]  [\Z]  [\Qa\E]  (?<=a*)b  (?<=a|ab)b  (?<=a|b)b  (?)  (?-)
(?i  (?  (?i-  (?ii)a  (?i-i:a)  (?^a)  (?'n'a)  (?|a|b)  \  a\  \y  \i  \-  \/  \_  \"  \  a  [[:alpha:]]  [a&]  [&&a]  [a&&]
[&]  (?s-m:a.b)  (?i)(?s)a  (?i)|a  (?=[ab]).+  a$b  a^b  \\  \\E  [\\]  x{249}  (?:x{83}){3}  [^\W]
"""
EVERY_CONSTRUCT = _CONSTRUCTS.split()


def ask(requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The responses of the JVM."""
    run_tool("fetch", version=VERSION, timeout=FETCH_TIMEOUT)
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    answers = run_tool("run", str(PROGRAM), stdin=lines, version=VERSION, timeout=100).splitlines()
    responses = [json.loads(line) for line in answers if line.startswith("{")]
    assert len(responses) == len(requests)
    return responses


def from_grammar(dice: random.Random) -> str:
    """A pattern that is mostly valid in Java."""

    def expression(depth: int) -> str:
        return "|".join("".join(piece(depth) for _ in range(dice.randint(0, 4))) for _ in range(dice.choice([1, 1, 1, 2, 3])))

    def piece(depth: int) -> str:
        quantifier = dice.choice(["", "", "", "", "*", "+", "?", "{2}", "{1,2}", "{0,3}", "{1,}", "*?", "+?", "??", "{1,2}?", "*+"])
        return atom(depth) + quantifier

    def atom(depth: int) -> str:
        kind = dice.random()
        if kind < 0.2 and depth:
            begin = dice.choice(["(", "(", "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?i:", "(?-i:", "(?s-i:", "(?>", "(?i)", "(?<n>"])
            return begin + expression(depth - 1) + ")"
        if kind < 0.4:
            return (
                "["
                + dice.choice(["", "", "^"])
                + "".join(member() for _ in range(dice.randint(1, 3)))
                + dice.choice(["", "-"])
                + "]"
            )
        if kind < 0.55:
            return dice.choice(
                [".", ".", "^", "$", r"\b", r"\B", r"\A", r"\w", r"\W", r"\d", r"\D", r"\s", r"\S", r"\Z", r"\x61", r"\."]
            )
        return dice.choice("aaabbbcAB01-_x.") if kind < 0.98 else dice.choice("é\u017f\u212a😀\0\n&~|#")

    def member() -> str:
        return dice.choice(
            [
                "a",
                "b",
                "A",
                "-",
                ".",
                "_",
                "^",
                "]",
                "&",
                "a-c",
                "A-Z",
                "0-9",
                "a-Z",
                "+--",
                r"\w",
                r"\D",
                r"\-",
                r"\]",
                r"\x61",
                r"\.",
                "é",
            ]
        )

    return dice.choice(["", "", "", "(?i)", "(?s)", "(?im)"]) + expression(2)


def from_parts(dice: random.Random) -> str:
    """Characters and escapes in any order."""
    parts = [
        *r"aabbAB01.-_|^$*+?(){}[]&~,\ #",
        "(?",
        "(?i)",
        "(?:",
        "{2}",
        "{1,2}",
        "[^",
        "[a",
        "a-z",
        "b]",
        "&&",
        "||",
        "\\Q",
        "\\E",
    ]
    parts += ["\\" + letter for letter in string.ascii_letters + string.digits]
    return "".join(dice.choice(parts) for _ in range(dice.randint(1, 7)))


def compile_strictly(pattern: str) -> Callable[[str], object] | None:
    """The full match of an accepted pattern. Python's ``re`` must not warn that it will be read differently one day."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return compile_java_pattern(pattern).fullmatch
        except ConfigError:
            return None


def test_an_accepted_pattern_matches_the_same_topics_in_java(kafka_tool: KafkaTool) -> None:
    del kafka_tool  # skips without Java
    dice = random.Random(8)
    topics = dict.fromkeys(EVERY_CONSTRUCT, (*TOPICS, *LONG_TOPICS))
    for _ in range(PATTERNS):
        topics.setdefault(dice.choice([from_grammar, from_grammar, from_parts])(dice), TOPICS)
    requests = [{"kind": "pattern", "text": pattern, "topics": asked} for pattern, asked in topics.items()]
    outcomes: Counter[str] = Counter()
    for (pattern, asked), java in zip(topics.items(), ask(requests), strict=True):
        if "slow" in java:
            continue  # it would take as long here
        matches = compile_strictly(pattern)
        if "error" in java:
            assert matches is None, (pattern, java["error"])
        elif matches is not None:
            assert [matches(topic) is not None for topic in asked] == java["matches"], pattern
        outcomes["refused by both" if "error" in java else "accepted" if matches else "refused here"] += 1
    assert outcomes["accepted"] > PATTERNS / 6
    assert outcomes["refused by both"] > PATTERNS / 10
    assert outcomes["refused here"] < PATTERNS / 2


def test_a_topic_filter_allows_what_java_allows(kafka_tool: KafkaTool) -> None:
    del kafka_tool
    dice = random.Random(9)
    parts = [*"ab,|.*\"' \t\\-_", "orders", "__", "\\.", "\\w", "(", ")", "[ab]", "consumer_offsets", "\x01", "\n", "é"]
    texts = ["orders , a.*", "'a|b'", '"orders"', " '\" a,b \"' ", "a b", "'it's'", ",", "", " ", "''", "a,", "[a,,b]"]
    texts += ["".join(dice.choice(parts) for _ in range(dice.randint(0, 6))) for _ in range(3_000)]
    requests = [{"kind": kind, "text": text, "topics": TOPICS} for text in texts for kind in (WHITE_LIST, BLACK_LIST)]
    accepted = 0
    for request, java in zip(requests, ask(requests), strict=True):
        try:
            ours = TopicFilter(request["text"], request["kind"])
        except ConfigError:
            continue
        assert "error" not in java, request
        assert ours.pattern == java["text"], request
        assert [ours.allows(topic, False) for topic in TOPICS] == java["matches"], request
        assert [ours.allows(topic, True) for topic in TOPICS] == java["external"], request
        accepted += 1
    assert accepted > len(requests) / 2
