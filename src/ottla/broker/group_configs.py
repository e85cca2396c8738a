"""The settings of single groups, as the group coordinator asks for them.

Owns their reading from what is stored. Must not know who may set them (``resources``). Invariant: a value lies between the
broker's present bounds, whatever they were when it was set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ottla.broker.config import BrokerConfig, group_bound
from ottla.broker.ports import StoredSettings


class StoredGroupConfigs:
    """The lookup of ``GroupConfigs`` over the settings that hold now."""

    def __init__(self, settings: Callable[[], StoredSettings], broker: Callable[[], BrokerConfig]) -> None:
        self._settings = settings
        self._broker = broker

    def of_group(self, group_id: str) -> Mapping[str, int]:
        """What was set on a group, by Kafka's names; what was not set is not in there."""
        stored = self._settings().groups.get(group_id)
        if not stored:
            return {}
        broker = self._broker()
        return {
            name: max(group_bound(name, "min", broker), min(int(value), group_bound(name, "max", broker)))
            for name, value in stored.items()
        }
