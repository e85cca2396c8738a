"""What the shared options mean."""

from __future__ import annotations

import pytest
import typer

from ottla.cli.options import client_settings, pairs


def test_pairs_split_at_the_first_equals_sign_and_the_last_of_a_name_wins() -> None:
    assert pairs(["a=1", "b=x=y", "a=2", "c="], "-X") == {"a": "2", "b": "x=y", "c": ""}


@pytest.mark.parametrize("given", ["a", "=1", " =1"])
def test_what_is_no_pair_is_bad_usage(given: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not NAME=VALUE"):
        pairs([given], "-X")


def test_a_setting_wins_over_the_bootstrap_option() -> None:
    assert client_settings("a:1", ["bootstrap.servers=b:2"]) == {"bootstrap.servers": "b:2"}
    assert client_settings("a:1", None) == {"bootstrap.servers": "a:1"}
