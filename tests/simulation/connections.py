"""One connection of an application: that to the coordinator of its group.

Owns how it is found, broken and held up. Must not know what is tested.
"""

from __future__ import annotations

from ottla.simulation.application import App
from ottla.simulation.world import World


def hold_coordinator(world: World, app: App, duration: int) -> None:
    """The broker does not read this connection for ``duration`` ms; then it reads all that has arrived, and the close.

    Kafka does not read a connection before it has answered its last request; then it reads the rest, even if the client has closed
    the connection.
    """
    world.network.hold((_number(app), "to the broker"), duration)


def lose_coordinator(world: World, app: App) -> None:
    """Break this connection."""
    number = _number(app)
    world.broker.hang_up(number)
    app.link.lose(number, "the test broke it")


def _number(app: App) -> int:
    target = app.assembly.coordinator.target()
    assert target is not None
    connection = app.assembly.core.connections.brokers.get(target)
    assert connection is not None
    assert connection.connection_id is not None
    return app.numbers[connection.connection_id]
