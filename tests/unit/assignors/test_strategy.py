"""Which rebalance protocol follows from the assignors of a consumer, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ottla.assignors import ConsumerPartitionAssignor, RangeAssignor, RebalanceProtocol, strategy
from ottla.errors import ConfigError


class Mine(RangeAssignor):
    name = "mine"

    def __repr__(self) -> str:  # the name of a test must be the same in every run
        return self.name


class OnlyCooperative(Mine):
    name = "together"

    def supported_protocols(self) -> Sequence[RebalanceProtocol]:
        return (RebalanceProtocol.COOPERATIVE,)


@pytest.mark.parametrize(
    ("configured", "protocol"),
    [
        (("range",), RebalanceProtocol.EAGER),
        (("range", "cooperative-sticky"), RebalanceProtocol.EAGER),
        (("cooperative-sticky",), RebalanceProtocol.COOPERATIVE),
        (("cooperative-sticky", "sticky"), RebalanceProtocol.EAGER),
        ((Mine(), "cooperative-sticky"), RebalanceProtocol.EAGER),
        ((OnlyCooperative(), "cooperative-sticky"), RebalanceProtocol.COOPERATIVE),
    ],
    ids=str,
)
def test_the_highest_protocol_that_all_support(configured: tuple[object, ...], protocol: RebalanceProtocol) -> None:
    assert strategy(configured).protocol is protocol


def test_the_order_is_kept_and_the_users_own_are_known() -> None:
    found = strategy((Mine(), "range"))
    assert list(found.assignors) == ["mine", "range"]
    assert found.foreign == {"mine"}


@pytest.mark.parametrize(
    ("configured", "message"),
    [
        ((OnlyCooperative(), "range"), r"no rebalance protocol in common \(together: COOPERATIVE; range: EAGER\)"),
        ((object(),), "is no assignor"),
        ((RangeAssignor(), "range"), "two assignors are called 'range'"),
    ],
)
def test_what_can_not_work_is_refused(configured: tuple[object, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        strategy(configured)


def test_an_assignor_needs_a_name() -> None:
    class Nameless(ConsumerPartitionAssignor):
        def assign(self, cluster, members):  # type: ignore[no-untyped-def]
            return {}

    with pytest.raises(ConfigError, match="has no name"):
        strategy((Nameless(),))
