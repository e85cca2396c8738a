"""Java's patterns: what is accepted, and the errors. ``tests/interop/zookeeper/test_java_regex.py`` compares them with a JVM."""

from __future__ import annotations

import pytest

from ottla.errors import ConfigError
from ottla.java_regex import compile_java_pattern


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("orders|payments.*", ["orders", "payments-eu"], ["orders-eu", "my-orders"]),
        (r"(?i)orders\.(eu|us)", ["Orders.EU"], ["orders-eu"]),
        ("[a-c_-]{2,3}?", ["a-", "c_b"], ["a", "d-"]),
        (r"(?!tmp-)\w+", ["tmp"], ["tmp-1", "a-b"]),
        (".*(?<!-dlq)", ["orders"], ["orders-dlq"]),
        ("(?i:A)b", ["ab", "Ab"], ["aB"]),
        ("(?i)\u212a", [], ["k", "K"]),
        ("", [], ["a"]),
    ],
)
def test_an_accepted_pattern_matches_whole_names(pattern: str, matching: list[str], others: list[str]) -> None:
    compiled = compile_java_pattern(pattern)
    assert [name for name in (*matching, *others) if compiled.fullmatch(name)] == matching


@pytest.mark.parametrize(
    ("pattern", "construct", "hint"),
    [
        (r"\p{Lu}.*", r"'\p{Lu}' at position 0", "write the characters, as in [A-Z]"),
        (r"a|\Qa.b\E", r"'\Qa.b\E' at position 2", r"write a backslash before each character instead, as in \."),
        ("[a-z&&[^b]]", "'&&' at position 4", "an intersection"),
        ("[a[b]]", "'[' at position 2", "a class in a class"),
        ("[]a]", "']' at position 1", r"the first ] of a class is written \]"),
        ("[^]a]", "']' at position 2", r"the first ] of a class is written \]"),
        (r"[\w-z]", "'-' at position 3", "write - first or last in the class"),
        ("[--a]", "'-' at position 2", "write - first or last in the class"),
        ("[a||b]", "'||' at position 2", "write it once"),
        ("[a", "'[' at position 0", "the class is not closed"),
        ("(?<name>a)", "'(?<name' at position 0", "name groups differently"),
        ("(?P<name>a)", "'(?P<name' at position 0", "name groups differently"),
        ("(a)?(?(1)b|c)", "'(?(' at position 4", "only one of Java and Python has it"),
        ("(?#a)", "'(?#' at position 0", "only one of Java and Python has it"),
        ("(?>a)", "'(?>' at position 0", "Python 3.11 match atomic groups wrongly"),
        ("a*+", "'*+' at position 1", "Python 3.11 match possessive quantifiers wrongly"),
        ("a{2}+", "'{2}+' at position 1", "Python 3.11 match possessive quantifiers wrongly"),
        ("a(?i)b", "'(?i)' at position 1", "at the beginning of the pattern"),
        ("(?d)a", "'(?d)' at position 0", "flags are i, m and s"),
        ("(?x:a)", "'(?x:' at position 0", "flags are i, m and s"),
        (r"\h", r"'\h' at position 0", "names of topics have no such characters"),
        (r"a\R", r"'\R' at position 1", "names of topics have no such characters"),
        (r"a\z", r"'\z' at position 1", "write $ or ^, which mean the same"),
        (r"a\Z", r"'\Z' at position 1", "write $ or ^, which mean the same"),
        (r"(a)\1", r"'\1' at position 3", "references to groups are not supported"),
        (r"\07", r"'\07' at position 0", "write the character itself"),
        (r"\x{41}", r"'\x' at position 0", "write the character itself"),
        (r"\ud83d\ude00", r"'\u' at position 0", "write the character itself"),
        (r"[\b]", r"'\b' at position 1", "only outside of [...]"),
        ("a\\", r"'\' at position 1", "only one of Java and Python has it"),
        ("a{,3}", "'{,3}' at position 1", "a quantifier such as * or {2,3}, with counts up to 1000, follows what it repeats"),
        ("a{3,2}", "'{3,2}' at position 1", "a quantifier"),
        ("a{1001}", "'{1001}' at position 1", "a quantifier"),
        ("*a", "'*' at position 0", "a quantifier"),
        ("a**", "'*' at position 2", "a quantifier"),
        ("(a", "'(' at position 0", "the parentheses do not match"),
        ("a)", "')' at position 1", "the parentheses do not match"),
    ],
)
def test_a_refused_pattern_raises_with_the_construct_and_what_to_write(pattern: str, construct: str, hint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        compile_java_pattern(pattern)
    assert str(raised.value).startswith(f"the Java pattern '{pattern}' cannot be used: {construct} (")
    assert raised.value.hint is not None
    assert hint in raised.value.hint


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("[z-a]", "Python cannot compile the Java pattern '[z-a]': bad character range z-a at position 1"),
        ("(?<=a|bc)d", "Python cannot compile the Java pattern '(?<=a|bc)d': look-behind requires fixed-width pattern"),
        ("a\ud800", r"the Java pattern 'a\ud800' has half of a character"),
    ],
)
def test_a_pattern_that_python_cannot_compile_raises_with_its_reason(pattern: str, why: str) -> None:
    with pytest.raises(ConfigError) as raised:
        compile_java_pattern(pattern)
    assert str(raised.value) == why


def test_a_pattern_that_is_nested_too_deeply_raises() -> None:
    with pytest.raises(ConfigError, match=r"^Python cannot compile the Java pattern '\(\("):
        compile_java_pattern("(" * 20_000 + ")" * 20_000)
