"""The rebalance protocol of a consumer's assignors, and the errors of invalid assignors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from ottla.assignors import ConsumerPartitionAssignor, RangeAssignor, RebalanceProtocol, client_strategy, strategy
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


def test_a_strategy_keeps_the_order_and_names_the_users_assignors() -> None:
    found = strategy((Mine(), "range"))
    assert list(found.assignors) == ["mine", "range"]
    assert found.foreign == {"mine"}


@pytest.mark.parametrize(
    ("configured", "message"),
    [
        ((OnlyCooperative(), "range"), r"no rebalance protocol in common \(together: COOPERATIVE; range: EAGER\)"),
        ((object(),), "is not an assignor"),
        ((RangeAssignor(), "range"), "two assignors are called 'range'"),
    ],
)
def test_what_cannot_work_is_refused(configured: tuple[object, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        strategy(configured)


def test_an_assignor_needs_a_name() -> None:
    class Nameless(ConsumerPartitionAssignor):
        def assign(self, cluster, members):  # type: ignore[no-untyped-def]
            return {}

    with pytest.raises(ConfigError, match="has no name"):
        strategy((Nameless(),))


class Versioned(Mine):
    def __init__(self, version: object) -> None:
        self._version = version

    def version(self) -> int:
        return self._version  # type: ignore[return-value]


def test_members_of_a_consumer_group_need_no_rebalance_protocol_in_common() -> None:
    found = client_strategy((OnlyCooperative(), "range", Versioned(7)))
    assert list(found.assignors) == ["together", "range", "mine"]
    assert found.foreign == {"together", "mine"}
    assert found.versions == {"together": 0, "range": 0, "mine": 7}
    assert found.cooperative
    assert client_strategy(()).assignors == {}


@pytest.mark.parametrize(
    ("configured", "message"),
    [
        ((object(),), r"group\.client\.assignors: .* is not an assignor"),
        ((RangeAssignor(), "range"), r"group\.client\.assignors: two assignors are called 'range'"),
        ((Versioned(-1),), r"version\(\) of 'mine' returned -1, not a whole number from 0 to 32767"),
        ((Versioned(32_768),), "returned 32768"),
        ((Versioned("2"),), "returned '2'"),
    ],
)
def test_invalid_client_assignors_are_refused(configured: tuple[object, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        client_strategy(configured)


@pytest.mark.parametrize(
    ("method", "choose"),
    [("supported_protocols", strategy), ("supported_protocols", client_strategy), ("version", client_strategy)],
)
def test_errors_of_an_assignors_methods_name_the_setting(
    monkeypatch: pytest.MonkeyPatch, method: str, choose: Callable[[Sequence[object]], object]
) -> None:
    def fail(self: object) -> None:
        raise RuntimeError("not today")

    monkeypatch.setattr(Mine, method, fail)
    setting = "partition.assignment.strategy" if choose is strategy else "group.client.assignors"
    with pytest.raises(ConfigError, match=rf"^{setting}: {method}\(\) of 'mine' raises: RuntimeError\('not today'\)") as raised:
        choose((Mine(),))
    assert isinstance(raised.value.cause, RuntimeError)
