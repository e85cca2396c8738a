"""What goes wrong in a run: with the network, with brokers and ZooKeeper, and with the processes of members.

Owns the faults, their duration and their end. Must not know what members do, nor what must hold. Invariant: after ``end_all``
nothing begins to go wrong; a member that was about to stall, or a message that is held, may still take some seconds.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from ottla.broker.faults.rules import (
    Action,
    Delay,
    Drop,
    ExpireMember,
    Fail,
    FailAppends,
    Freeze,
    LoseReply,
    Moment,
    MoveCoordinator,
)
from ottla.broker.topics import OFFSETS_TOPIC
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.simulation.application import App, Thread
from ottla.simulation.cluster import name_of
from ottla.simulation.judge import GROUP
from ottla.simulation.outcome import Generation
from ottla.simulation.trace import Trace
from ottla.simulation.workload import MAX_POLL_INTERVAL, Member, Workload
from ottla.simulation.world import World
from ottla.simulation.zookeeper_broker import Thread as BrokerThread, ZooKeeperBroker
from ottla.simulation.zookeeper_server import HOST, Break
from ottla.zookeeper import paths

SLOW = 300
"""Milliseconds that a message takes at most in a slow network."""

USUAL = 5

_COORDINATOR = (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress)

_ERRORS: dict[Api, tuple[ErrorCode, ...]] = {
    Api.METADATA: (ErrorCode.leader_not_available, ErrorCode.unknown_server_error),
    Api.FIND_COORDINATOR: (ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress),
    Api.OFFSET_FETCH: (*_COORDINATOR, ErrorCode.unstable_offset_commit),
    Api.OFFSET_COMMIT: (*_COORDINATOR, ErrorCode.request_timed_out),
    Api.LIST_OFFSETS: (ErrorCode.not_leader_or_follower, ErrorCode.leader_not_available, ErrorCode.offset_not_available),
    Api.FETCH: (
        ErrorCode.not_leader_or_follower,
        ErrorCode.kafka_storage_error,
        ErrorCode.unknown_topic_id,
        ErrorCode.fetch_session_id_not_found,
        ErrorCode.invalid_fetch_session_epoch,
    ),
    Api.JOIN_GROUP: (*_COORDINATOR, ErrorCode.unknown_member_id),
    Api.SYNC_GROUP: (*_COORDINATOR, ErrorCode.unknown_member_id, ErrorCode.illegal_generation, ErrorCode.rebalance_in_progress),
    Api.HEARTBEAT: (*_COORDINATOR, ErrorCode.unknown_member_id, ErrorCode.illegal_generation, ErrorCode.rebalance_in_progress),
    Api.LEAVE_GROUP: _COORDINATOR,
    Api.CONSUMER_GROUP_HEARTBEAT: (*_COORDINATOR, ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch),
    Api.CONSULT: (ErrorCode.coordinator_not_available, ErrorCode.request_timed_out),
    Api.REGISTER: (*_COORDINATOR, ErrorCode.request_timed_out),
    Api.LEAVE: _COORDINATOR,
}
"""The errors with which brokers may answer a request, though nothing is wrong with it."""

_APIS = (Api.METADATA, Api.FIND_COORDINATOR, Api.OFFSET_FETCH, Api.OFFSET_COMMIT, Api.LIST_OFFSETS, Api.FETCH)

_GROUP_APIS: dict[str, tuple[Api, ...]] = {
    Generation.CLASSIC: (Api.JOIN_GROUP, Api.SYNC_GROUP, Api.HEARTBEAT, Api.LEAVE_GROUP),
    Generation.CONSUMER: (Api.CONSUMER_GROUP_HEARTBEAT,) * 3,
    Generation.ZOOKEEPER: (),
    Generation.CENTRAL: (Api.CONSULT, Api.REGISTER, Api.REGISTER, Api.LEAVE),
}


class Faults:
    """See the module."""

    def __init__(self, world: World, workload: Workload, generation: Generation, chance: random.Random, trace: Trace) -> None:
        self._world = world
        self._workload = workload
        self._generation = generation
        self._chance = chance
        self._trace = trace
        self._ends: dict[int, Callable[[], None]] = {}
        """The ends of the faults that have begun."""
        self._of_process: set[int] = set()
        """The faults that the broker's process ends by itself, and that end with it."""
        self._count = 0
        self._kinds: list[tuple[int, Callable[[], None]]] = [
            (3, self._kill_member),
            (4, self._stop_process),
            (2, self._stall),
            (4, self._separate),
            (2, self._isolate),
            (3, self._break_connections),
            (2, self._hold_connection),
            (3, self._kill_broker),
            (2, self._slow_network),
            (1, self._move_wall_clock),
            (4, self._fail_requests),
            (1, self._freeze_broker),
        ]
        if generation != Generation.CENTRAL:  # its coordinator is elected, and its group is in no log
            self._kinds += [(1, self._fill_disk), (1, self._move_coordinator), (1, self._remove_member)]
        if world.brokers is not None:
            self._kinds += [
                (3, self._stop_broker),
                (2, self._separate_broker),
                (1, self._isolate_broker),
                (2, self._stop_zookeeper),
                (3, self._expire_broker),
                (4, self._break_in_multi),
                (2, self._outdate_broker),
            ]
        if generation == Generation.ZOOKEEPER:
            self._kinds += [(3, self._stop_zookeeper), (3, self._expire_session), (3, self._outdate_zookeeper)]

    def begin(self) -> None:
        """Let something go wrong."""
        weights = [weight for weight, _ in self._kinds]
        _, kind = self._chance.choices(self._kinds, weights)[0]
        kind()

    def end_all(self) -> None:
        """End all faults."""
        for number in list(self._ends):
            self._end(number)
        self._world.broker.clear_faults()

    # -- members ----------------------------------------------------------------------------------------------------------

    def _kill_member(self) -> None:
        member = self._member()
        if member is None:
            return
        self._trace.line(member.app.name, "is killed")
        member.app.kill()
        if self._chance.random() < 0.5:
            self._world.clock.after(self._chance.randint(0, 9_000), lambda: self._restart(member))

    def _restart(self, member: Member) -> None:
        self._workload.restart(member, "is started in place of the killed process")

    def _stop_process(self) -> None:
        member = self._member()
        if member is None or member.app.is_stopped:
            return
        app, first = member.app, self._chance.choice(list(Thread))
        app.sigstop()
        self._for_a_while(app.name, "is stopped, as by SIGSTOP", "continues", 15_000, lambda: app.sigcont(first))

    def _stall(self) -> None:
        member = self._member()
        if member is not None:
            member.stall = self._chance.choice((500, 3_000, MAX_POLL_INTERVAL + 2_000))
            self._trace.line(member.app.name, f"will not poll for {member.stall} ms")

    def _expire_session(self) -> None:
        session_id = self._session_id()
        if session_id is not None and self._world.zookeeper.up:
            self._trace.line(HOST, f"ends session {session_id}")
            self._world.zookeeper.expire(session_id)

    # -- the network ------------------------------------------------------------------------------------------------------

    def _separate(self) -> None:
        member = self._member()
        if member is None:
            return
        network, one, other = self._world.network, member.app.name, self._chance.choice(self._peers(member.app))
        if network.reaches(one, other):
            network.separate(one, other)
            self._for_a_while(one, f"does not reach {other}", f"reaches {other} again", 12_000, lambda: network.join(one, other))

    def _isolate(self) -> None:
        member = self._member()
        if member is not None and not self._world.network.is_isolated(member.app.name):
            network, name = self._world.network, member.app.name
            network.isolate(name)
            self._for_a_while(name, "reaches no host", "has its network back", 12_000, lambda: network.rejoin(name))

    def _break_connections(self) -> None:
        member = self._member()
        if member is not None:
            self._trace.line(member.app.name, "loses its connections")
            for number in list(member.app.numbers.values()):
                self._world.broker.break_connection(number)

    def _hold_connection(self) -> None:
        member = self._member()
        if member is not None and member.app.numbers:
            number, duration = self._chance.choice(list(member.app.numbers.values())), self._chance.randint(500, 5_000)
            way = self._chance.choice(("to the broker", "to the client"))
            self._trace.line(member.app.name, f"has a connection on which nothing moves {way} for {duration} ms")
            self._world.network.hold((number, way), duration)

    def _slow_network(self) -> None:
        network = self._world.network
        if network.slowest == USUAL:
            network.slowest = self._chance.randint(50, SLOW)
            self._for_a_while("network", f"takes up to {network.slowest} ms", "is fast again", 10_000, self._fast_network)

    def _fast_network(self) -> None:
        self._world.network.slowest = USUAL

    # -- servers ----------------------------------------------------------------------------------------------------------

    def _kill_broker(self) -> None:
        broker = self._world.broker
        if broker.up:
            node_id = self._node_id()
            was_host = node_id == broker.cluster.host and self._world.brokers is None
            broker.kill(node_id)
            self._for_a_while(name_of(node_id), "is killed", "is started", 5_000, lambda: broker.start(node_id))
            if was_host:
                for number in sorted(self._of_process):
                    self._end(number)
                self._of_process.clear()

    def _node_id(self) -> int:
        """One of the brokers that run, often the one that is elected as the central coordinator."""
        up = sorted(self._world.broker.cluster.up)
        elected = self._world.zookeeper.model.data(paths.COORDINATOR) if self._generation == Generation.CENTRAL else None
        if elected is not None and int(elected) in up and self._chance.random() < 0.6:
            return int(elected)
        return self._chance.choice(up)

    def _broker(self) -> ZooKeeperBroker | None:
        """A broker with a core of its own, if one runs and is not stopped."""
        brokers = self._world.brokers
        if brokers is None or not brokers.up:
            return None
        broker = brokers.nodes[self._node_id()]
        return None if broker.is_stopped else broker

    def _stop_broker(self) -> None:
        broker = self._broker()
        if broker is None:
            return
        process, first = broker.core, self._chance.choice(list(BrokerThread))

        def continues() -> None:
            if broker.core is process and broker.is_stopped:
                broker.sigcont(first)

        broker.sigstop()
        self._for_a_while(broker.host, "is stopped, as by SIGSTOP", "continues", 15_000, continues)

    def _separate_broker(self) -> None:
        """Cut a broker off from ZooKeeper, or from another host."""
        broker, network = self._broker(), self._world.network
        if broker is not None and network.reaches(broker.host, HOST):
            network.separate(broker.host, HOST)
            end = partial(network.join, broker.host, HOST)
            self._for_a_while(broker.host, f"does not reach {HOST}", f"reaches {HOST} again", 12_000, end)

    def _isolate_broker(self) -> None:
        broker, network = self._broker(), self._world.network
        if broker is not None and not network.is_isolated(broker.host):
            network.isolate(broker.host)
            self._for_a_while(broker.host, "reaches no host", "has its network back", 12_000, partial(network.rejoin, broker.host))

    def _expire_broker(self) -> None:
        broker, zookeeper = self._broker(), self._world.zookeeper
        if broker is not None and broker.session_id in zookeeper.model.sessions and zookeeper.up:
            self._trace.line(HOST, f"ends session {broker.session_id} of {broker.host}")
            broker.expire_session()

    def _break_in_multi(self) -> None:
        broker, where = self._broker(), self._chance.choice(list(Break))
        if broker is not None and broker.client.session_id is not None:
            session_id, zookeeper = broker.client.session_id, self._world.zookeeper
            zookeeper.break_in_multi(session_id, where)
            beginning = f"session {session_id} of {broker.host} will lose its connection in its next multi, {where.value}"
            self._for_a_while(HOST, beginning, "breaks no connections", 5_000, lambda: zookeeper.break_in_multi(session_id, None))

    def _outdate_broker(self) -> None:
        """Cut the server with which a broker is connected off from its leader."""
        broker = self._broker()
        self._outdate(broker.client.session_id if broker is not None else None)

    def _fail_requests(self) -> None:
        """Let some requests of one kind fail, or their replies be late or lost."""
        chance, broker = self._chance, self._world.broker
        api = chance.choice((*_APIS, *_GROUP_APIS[self._generation]))
        errors = [Fail(code) for code in _ERRORS[api]]
        actions: list[Action] = [LoseReply(), Delay(chance.randint(100, 5_000)), *map(Drop, Moment), *errors]
        action = chance.choice(actions)
        times, duration = chance.randint(1, 5), chance.randint(500, 6_000)
        if broker.up:
            broker.set_fault(action, api, times=times, lasts=duration)
            self._trace.line("brokers", f"{_text(action)} the next {times} {api.name} within {duration} ms")

    def _fill_disk(self) -> None:
        self._broker_fault(FailAppends(OFFSETS_TOPIC), "cannot write offsets and groups", "can write offsets and groups again")

    def _freeze_broker(self) -> None:
        self._broker_fault(Freeze(), "freeze", "answer again")

    def _move_coordinator(self) -> None:
        self._broker_fault(MoveCoordinator(GROUP), "do not coordinate the group", "coordinate the group again")

    def _broker_fault(self, action: Action, beginning: str, ending: str) -> None:
        if self._world.broker.up:
            duration = self._for_a_while("brokers", beginning, ending, 10_000)
            self._of_process.add(self._count)
            self._world.broker.set_fault(action, times=None, lasts=duration)

    def _remove_member(self) -> None:
        """Have the coordinator expire a member's session before its time."""
        member = self._member()
        if member is not None and self._world.broker.up:
            self._trace.line("brokers", f"expire {member.app.name}")
            self._world.broker.expire(ExpireMember(GROUP, client_id=member.app.name))

    def _stop_zookeeper(self) -> None:
        zookeeper = self._world.zookeeper
        if zookeeper.up:
            zookeeper.stop()
            self._for_a_while(HOST, "is stopped", "is started", 8_000, zookeeper.start)

    def _outdate_zookeeper(self) -> None:
        """Cut the server with which a member is connected off from its leader."""
        self._outdate(self._session_id())

    def _outdate(self, session_id: int | None) -> None:
        zookeeper = self._world.zookeeper
        if session_id is not None and zookeeper.is_connected(session_id):
            zookeeper.fall_behind(session_id)
            beginning, ending = f"the server of session {session_id} is cut off from its leader", "all servers reach their leader"
            self._for_a_while(HOST, beginning, ending, 10_000, lambda: zookeeper.catch_up(session_id))

    def _move_wall_clock(self) -> None:
        by = self._chance.choice((-3_600_000, -1_000, 1_000, 3_600_000))
        self._trace.line("wall clock", f"moves by {by} ms")
        self._world.clock.set_wall(by)

    # -- internals --------------------------------------------------------------------------------------------------------

    def _member(self) -> Member | None:
        members = self._workload.live
        return self._chance.choice(members) if members else None

    def _session_id(self) -> int | None:
        """The session of a member, if it has one."""
        member = self._member()
        session = member.app.assembly.core.session if member is not None else None
        return session.session_id if session is not None else None

    def _peers(self, app: App) -> list[str]:
        peers = [name_of(node_id) for node_id in self._world.broker.cluster.nodes]
        return peers if app.assembly.core.session is None else [*peers, HOST, HOST]

    def _for_a_while(self, who: str, beginning: str, ending: str, longest: int, end: Callable[[], None] = lambda: None) -> int:
        """End a fault after some time; returns it (milliseconds). Without ``end`` the fault ends by itself."""
        number = self._count = self._count + 1
        duration = int(self._chance.triangular(50, longest, 1_000))
        self._trace.line(who, f"{beginning} ({duration} ms)")

        def ended() -> None:
            self._trace.line(who, ending)
            end()

        self._ends[number] = ended
        self._world.clock.after(duration, lambda: self._end(number))
        return duration

    def _end(self, number: int) -> None:
        end = self._ends.pop(number, None)
        if end is not None:
            end()


def _text(action: Action) -> str:
    match action:
        case Fail(error):
            return f"answer {error.name} to"
        case Delay(delay):
            return f"answer {delay} ms late to"
        case Drop(at):
            return f"drop the connection ({at.value}) of"
        case LoseReply():
            return "lose the response to"
        case _:
            raise AssertionError(action)
