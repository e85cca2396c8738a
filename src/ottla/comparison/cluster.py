"""The cluster of a real life: a ZooKeeper server, and brokers in processes of their own, each behind a counting proxy.

Owns the servers, their addresses and the kill of the coordinator. Must not know the members of the group. Invariants: members,
producer and brokers reach each server only through its proxy; a broker keeps its directory, its address and its node id over all
its processes.
"""

from __future__ import annotations

import random
import socket
import time
from functools import partial
from pathlib import Path
from typing import Any

from ottla import Admin
from ottla.comparison.life import BROKER_SETTINGS, BROKERS, PARTITIONS, TOPIC
from ottla.comparison.proxies import HOST, Proxy
from ottla.comparison.wire import KafkaMeter, Tally, ZooKeeperMeter
from ottla.demo.processes import Child, Children, Event
from ottla.errors import OttlaTimeoutError
from ottla.runtime.zookeeper_calls import ZooKeeperCalls
from ottla.runtime.zookeeper_server import PORTS, ZooKeeperServer
from ottla.simulation.outcome import Generation
from ottla.zookeeper.calls import ask
from ottla.zookeeper.nodes import decode_coordinator
from ottla.zookeeper.operations import GetData
from ottla.zookeeper.paths import CONSUMERS, COORDINATOR, COORDINATOR_EPOCH

ZOOKEEPER_SETTINGS = {"tickTime": 500}
"""A session can last 2 to 20 ticks. It ends at a tick, so short ones are exact."""
OFFSETS_TOPIC = "__consumer_offsets"
BROKER_START, ADMIN_TIMEOUT = 60.0, 20.0
"""Seconds after which the start of the brokers, and a call of ``Admin``, count as failed."""
RETRY = 0.05
"""Seconds between two questions."""


class Cluster:
    """See the module. Its ``proxies`` must be served."""

    def __init__(self, generation: Generation, folder: Path, zookeeper: ZooKeeperServer, children: Children) -> None:
        self.tally = Tally()
        self._generation, self._folder, self._zookeeper, self._children = generation, folder, zookeeper, children
        port = int(zookeeper.connect_string.rpartition(":")[2])
        # Brokers have other business in ZooKeeper. They elect a central coordinator in any case, but only central groups need it.
        roots = (CONSUMERS, COORDINATOR_EPOCH) if generation is Generation.CENTRAL else ()
        self._zookeeper_of_members = Proxy(port, partial(ZooKeeperMeter, self.tally))
        self._zookeeper_of_brokers = Proxy(port, partial(ZooKeeperMeter, self.tally, roots))
        self._ports = dict(zip(range(1, BROKERS + 1), _free_ports(BROKERS), strict=True))
        self._proxies = {number: Proxy(port, partial(KafkaMeter, self.tally)) for number, port in self._ports.items()}
        self._brokers: dict[int, Child] = {}
        self._coordinator = 0
        """The number of the broker that coordinates the group; 0: not known, or there is none."""
        self._opened: Admin | None = None

    @property
    def proxies(self) -> list[Proxy]:
        """All proxies."""
        return [self._zookeeper_of_members, self._zookeeper_of_brokers, *self._proxies.values()]

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of the brokers."""
        return ",".join(proxy.address for proxy in self._proxies.values())

    def addresses(self) -> dict[str, Any]:
        """The settings of a member by which it finds the cluster."""
        if self._generation is Generation.ZOOKEEPER:
            return {"zookeeper_connect": self._zookeeper_of_members.address}
        return {"bootstrap_servers": self.bootstrap_servers}

    def start(self) -> None:
        """Start the brokers, and create the topic."""
        for number in self._ports:
            self._start(number)
        for child in self._brokers.values():
            self._children.wait_for(child, "listening", BROKER_START)
        deadline = time.monotonic() + BROKER_START
        # Opened before the steps, which are measured.
        self._opened = Admin(
            bootstrap_servers=self.bootstrap_servers, default_api_timeout=ADMIN_TIMEOUT, request_timeout=ADMIN_TIMEOUT / 2
        )
        while len(self._admin.describe_cluster().nodes) < BROKERS:
            if time.monotonic() > deadline:
                raise OttlaTimeoutError(f"the brokers do not know each other after {BROKER_START:g} s")
            time.sleep(RETRY)
        self._admin.create_topics({TOPIC: PARTITIONS})

    def add_partitions(self, count: int) -> None:
        """Let the topic have ``count`` partitions."""
        self._admin.create_partitions({TOPIC: count})

    def find_coordinator(self) -> None:
        """Find out which broker coordinates the group, if one does."""
        if self._generation is not Generation.ZOOKEEPER:
            self._coordinator = self._find_coordinator()

    def kill_coordinator(self) -> None:
        """Kill it, or ZooKeeper."""
        if self._coordinator:
            self._children.kill(self._brokers.pop(self._coordinator))
        else:
            self._zookeeper.kill()

    def start_coordinator(self) -> None:
        """Start what was killed again, with its data. A broker may have to wait until the session of its last process expires."""
        if self._coordinator:
            self._start(self._coordinator)
        else:
            self._zookeeper.start()

    def check(self) -> None:
        """Raise if ZooKeeper has ended by itself. The children do so for a broker."""
        self._zookeeper.check()

    def check_end(self, event: Event) -> None:
        """Raise if a broker has ended that was not killed. It cannot have done so by itself without an error."""
        for child in self._brokers.values():
            if child.ended_with(event):
                raise child.failure()

    def close(self) -> None:
        """Kill the brokers."""
        if self._opened is not None:
            self._opened.close()
        for child in self._brokers.values():
            self._children.kill(child)

    @property
    def _admin(self) -> Admin:
        assert self._opened is not None, "start() comes first"
        return self._opened

    def _start(self, number: int) -> None:
        settings = {
            **BROKER_SETTINGS,
            "node.id": number,
            "advertised.listeners": f"PLAINTEXT://{self._proxies[number].address}",
        }
        arguments = {
            "data_dir": str(self._folder / f"broker-{number}"),
            "port": self._ports[number],
            "zookeeper": self._zookeeper_of_brokers.address,
            "settings": settings,
        }
        self._brokers[number] = self._children.start(f"broker-{number}", "ottla.comparison.broker_process", arguments)

    def _find_coordinator(self) -> int:
        """Return the number of the broker that coordinates the group, without a request that counts."""
        if self._generation is Generation.CENTRAL:
            calls = ZooKeeperCalls(self._zookeeper.connect_string)
            try:
                node = calls.run(lambda: ask(GetData(COORDINATOR)), round(ADMIN_TIMEOUT * 1000))
            finally:
                calls.close()
            return decode_coordinator(node.data, COORDINATOR)
        (partition,) = self._admin.list_topics(include_internal=True)[OFFSETS_TOPIC].partitions
        if partition.leader is None:
            raise OttlaTimeoutError(f"{OFFSETS_TOPIC} has no leader, so the group has no coordinator")
        return partition.leader


def _free_ports(count: int) -> list[int]:
    """Return ports that no outgoing connection takes while a broker is down."""
    free: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        try:
            socket.create_server((HOST, port)).close()
        except OSError:
            continue
        free.append(port)
        if len(free) == count:
            break
    return free
