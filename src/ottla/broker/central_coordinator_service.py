"""The central coordinator in the broker: which requests are its own, and where its effects go.

Owns the coordinator, its terms, the choice between it and the coordinator of all other groups, and the requests about groups of
both. Must not know ZooKeeper, nor the content of a group. Invariants: a broker that is not elected answers no request about a group
that it knows to be central, so no client takes the missing state of such a group for an empty one; before each step the lease of
the election is checked, so a broker that may have been deposed tells its members nothing; every request gets one answer.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

from ottla.broker.catalog import BrokerCatalog
from ottla.broker.effects import BrokerEffect, JobTag, NodeEndpoint, Reply, RequestContext, RunJob, Ticket, TimerKey
from ottla.broker.group_coordinator_service import GroupCoordinatorService
from ottla.coordinator.central.coordinator import CentralCoordinator, CentralCoordinatorEffect
from ottla.coordinator.central.decision import CentralConfig, GoOn
from ottla.coordinator.central.group import CommittedOffset, StoredGroup
from ottla.coordinator.central.messages import register_refused
from ottla.coordinator.consumer.heartbeat import heartbeat_refused
from ottla.coordinator.consumer.regex import resolve_all
from ottla.coordinator.coordinator import GroupCoordinator
from ottla.coordinator.describe import list_refused
from ottla.coordinator.effects import ApiError, Append, ResolvedRegexes, ResolveRegexes
from ottla.coordinator.runtime import Route, SplitRoute
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import list_groups_response
from ottla.types import Now, TopicPartition

_log = logging.getLogger("ottla.broker")

Offsets = Mapping[TopicPartition, CommittedOffset]

_OWN = frozenset({Api.REGISTER, Api.LEAVE, Api.PING, Api.STOP, Api.START})
"""The APIs of central groups alone."""

REFUSALS: Mapping[Api, ErrorCode] = MappingProxyType(
    {
        Api.JOIN_GROUP: ErrorCode.inconsistent_group_protocol,
        Api.CONSUMER_GROUP_HEARTBEAT: ErrorCode.inconsistent_group_protocol,
        # A member of the other kind that is left from before joins again, and then learns why it cannot.
        Api.SYNC_GROUP: ErrorCode.unknown_member_id,
        Api.HEARTBEAT: ErrorCode.unknown_member_id,
        Api.LEAVE_GROUP: ErrorCode.unknown_member_id,
        Api.TXN_OFFSET_COMMIT: ErrorCode.unknown_member_id,
        Api.CONSUMER_GROUP_PREPARE_ASSIGNMENT: ErrorCode.unknown_member_id,
        Api.CONSUMER_GROUP_INSTALL_ASSIGNMENT: ErrorCode.unknown_member_id,
        # After this, administrators ask DescribeGroups.
        Api.CONSUMER_GROUP_DESCRIBE: ErrorCode.group_id_not_found,
    }
)
"""The errors for a central group. All other APIs of groups are served."""

_LISTS: Mapping[Api, tuple[str, str]] = MappingProxyType(
    {
        Api.OFFSET_FETCH: ("groups", "groups"),
        Api.DESCRIBE_GROUPS: ("groups", "groups"),
        Api.DELETE_GROUPS: ("groups_names", "results"),
        Api.CONSUMER_GROUP_DESCRIBE: ("group_ids", "groups"),
    }
)
"""The APIs about several groups: the field of the request with the groups, and that of the response with one answer for each."""


_OF_OFFSETS = frozenset({Api.OFFSET_FETCH, Api.OFFSET_DELETE})
"""The APIs for which the offsets are read again if members of Kafka 0.8 may have committed."""


class Election(Protocol):
    """Who is elected."""

    def is_in_touch(self, now: Now) -> bool:
        """Whether this broker would know by now if another one had been elected, or soon."""

    def coordinator_id(self, now: Now) -> int:
        """The broker that is elected, as far as is known; -1: no broker, or this one is not in touch."""

    epoch: int
    """The epoch of the last election that this broker knows of; -1: it knows of none."""

    def tell(self, on_elected: Callable[[int, int, Now], None], on_resigned: Callable[[str, Now], None]) -> None:
        """Call these when this broker is elected, with the epoch and the version of its term, and when it resigns."""

    def check_lease(self, now: Now) -> None:
        """Resign if another broker may have been elected."""


class CentralLog(Protocol):
    """Where central groups are stored."""

    def begin(
        self,
        epoch_version: int,
        on_loaded: Callable[[Sequence[StoredGroup], Now], None],
        on_written: Callable[[Append, ErrorCode, Offsets | None, Now], None],
    ) -> None:
        """Begin a term: load all groups, and report them, and later the outcome of each append, with the offsets of the group if
        members of Kafka 0.8 may have changed them before."""

    def end(self) -> None:
        """End the term: no outcome of an append, and no offsets, will be reported."""

    def read_offsets(self, group_id: str, on_read: Callable[[Offsets | None, Now], None]) -> None:
        """Read the offsets of a group, after the appends before; ``None``: that failed."""

    def write(self, append: Append) -> None:
        """Write the records of an append, which concern one group."""


@dataclass(eq=False)
class Lookup:
    """The question which groups are central."""

    group_ids: tuple[str, ...]
    is_done: bool = False
    found: dict[str, bool] = field(default_factory=dict)
    """Whether each group is central; some may be missing: ZooKeeper has not told in time."""


@dataclass(eq=False, slots=True)
class _Fetch:
    """A request for which the offsets of groups are read again."""

    context: RequestContext
    message: Any
    route: Route | SplitRoute
    missing: set[str]


@dataclass(eq=False, slots=True)
class _Parts:
    """A request that two coordinators answer, each a part of it."""

    context: RequestContext
    join: Callable[[Mapping[Ticket, Any]], Any]
    missing: set[Ticket]
    answers: dict[Ticket, Any] = field(default_factory=dict)


class CentralCoordinatorService:
    """See the module. ``look`` begins a question about groups, which passes its outcome to a function at its end."""

    def __init__(
        self,
        catalog: BrokerCatalog,
        groups: GroupCoordinatorService,
        election: Election,
        log: CentralLog,
        look: Callable[[Collection[str], Callable[[Lookup], None], Now], Lookup],
    ) -> None:
        self.election = election
        self._catalog = catalog
        self._groups = groups
        self._log = log
        self._look = look
        self._coordinator = CentralCoordinator(_config(catalog), catalog.topics)
        self._central: set[str] = set()
        """The groups that were central when this broker last learnt of them, for the time in which it does not know them all."""
        self._looking: set[str] = set()
        """Those about which ZooKeeper is asked again."""
        self._fetches: dict[Ticket, _Fetch] = {}
        self._elected_at = 0
        self._parts: dict[Ticket, _Parts] = {}
        """The requests in parts, by the tickets of the parts: negative numbers, which no request has."""
        self._tickets = itertools.count(-1, -1)
        election.tell(self._on_elected, self._on_resigned)

    def __repr__(self) -> str:
        return f"<CentralCoordinatorService {len(self._central)} known groups>"

    # -- terms ------------------------------------------------------------------------------------------------------------

    def _on_elected(self, epoch: int, epoch_version: int, now: Now) -> None:
        self._elected_at = now.mono
        self._coordinator.start_loading()
        self._log.begin(epoch_version, partial(self._on_loaded, epoch), self._on_written)

    def _on_loaded(self, epoch: int, groups: Sequence[StoredGroup], now: Now) -> None:
        _log.info(
            "the central coordinator has read %d groups in %d ms: %d with members, %d owned partitions, %d committed offsets",
            len(groups),
            now.mono - self._elected_at,
            sum(1 for group in groups if group.owners),
            sum(len(group.owners) for group in groups),
            sum(len(group.offsets) for group in groups),
        )
        self._execute(self._coordinator.load(groups, epoch, now))

    def _on_resigned(self, reason: str, now: Now) -> None:
        if self._knows_all:
            self._central = set(self._coordinator.groups())
        self._log.end()
        self._execute(self._coordinator.unload(now))
        fetches, self._fetches = self._fetches, {}
        for fetch in fetches.values():
            self._refuse(fetch.context, fetch.message, fetch.route, ErrorCode.not_coordinator)

    def _on_written(self, append: Append, error: ErrorCode, found: Offsets | None, now: Now) -> None:
        self.election.check_lease(now)
        if found is not None:
            self._coordinator.adopt(append.records[0][0].decode().partition("/")[0], found)
        if error is ErrorCode.none:
            self._execute(self._coordinator.on_appended(append.partition, append.batch, now))
        else:
            self._execute(self._coordinator.on_append_failed(append.partition, append.batch, error, now))

    def endpoint(self, now: Now) -> NodeEndpoint | None:
        """The broker that is elected; ``None``: no broker that is registered, or this one is cut off from ZooKeeper."""
        return self._catalog.cluster.brokers.get(self.election.coordinator_id(now))

    def reconfigure(self) -> None:
        """Apply the broker's current settings to groups."""
        self._coordinator.reconfigure(_config(self._catalog))

    # -- which groups -----------------------------------------------------------------------------------------------------

    def look(self, group_ids: Collection[str], now: Now) -> Lookup:
        """Ask which of these groups are central. The outcome is remembered when it is done."""
        return self._look(group_ids, self._note, now)

    def _note(self, lookup: Lookup) -> None:
        for group_id, is_central in lookup.found.items():
            (self._central.add if is_central else self._central.discard)(group_id)
        self._looking.difference_update(lookup.group_ids)

    @property
    def _knows_all(self) -> bool:
        return self._coordinator.unavailable_error is None

    def is_central(self, group_id: str) -> bool:
        """Whether a group is central: as the coordinator this broker knows, else it knows what ZooKeeper has told last."""
        return self._coordinator.is_central(group_id) if self._knows_all else group_id in self._central

    def _doubt(self, group_ids: Iterable[str], now: Now) -> None:
        """Look again whether groups are central, since a request is refused for that: they may have been deleted meanwhile."""
        doubtful = [group_id for group_id in group_ids if group_id in self._central and group_id not in self._looking]
        if doubtful:
            self._looking.update(doubtful)
            self.look(doubtful, now)

    def _concerns(self, group_id: str) -> bool:
        """Whether requests about a group are for this coordinator.

        While the groups are loaded that may not be known: then a group that the other coordinator does not know has to wait. Its
        answer would be that nothing was ever committed.
        """
        if self.is_central(group_id):
            return True
        if self._coordinator.unavailable_error is not ErrorCode.coordinator_load_in_progress:
            return False
        known = self._groups.state_of(group_id)
        return known is not None and known[0] is None and not known[1]

    # -- requests ---------------------------------------------------------------------------------------------------------

    def handle(self, context: RequestContext, message: Any, now: Now) -> None:
        """Handle a request about groups, of any kind."""
        self.election.check_lease(now)
        if context.api is Api.REGISTER and (refusal := self._why_not_central(message.group_id)) is not None:
            self._catalog.outbox.put(Reply(context.ticket, register_refused(refusal)))
        elif context.api in _OWN:
            self._execute(self._coordinator.handle(context, message, now))
        elif context.api is Api.LIST_GROUPS:
            self._list(context, message, now)
        else:
            self._choose(context, message, now)

    def _why_not_central(self, group_id: str) -> ApiError | None:
        """Return why a group cannot become central: this broker coordinates another group of this name, which has members. It does
        not know of groups at other brokers. Only the elected one may say so: a client takes it for the coordinator's answer."""
        if not self._knows_all:
            return None
        known = None if self.is_central(group_id) else self._groups.state_of(group_id)
        members = known[0].members if known is not None and known[0] is not None else ()
        if not members:
            return None
        which = "1 member that is" if len(members) == 1 else f"{len(members)} members that are"
        text = f"group {group_id!r} has {which} not central"
        return ApiError(ErrorCode.inconsistent_group_protocol, f"{text}: use another group id, or stop them first")

    def _choose(self, context: RequestContext, message: Any, now: Now) -> None:
        route = GroupCoordinator.APIS[context.api]
        assert route is not None
        group_ids = _groups_of(message, route)
        central = {group_id for group_id in group_ids if self._concerns(group_id)}
        if not central:
            self._groups.handle(context, message, now)
        elif central.issuperset(group_ids):
            self._serve(context, message, route, now)
        else:
            self._divide(context, message, route, central, now)

    def _serve(self, context: RequestContext, message: Any, route: Route | SplitRoute, now: Now) -> None:
        """Serve a request about central groups alone, or refuse it."""
        error = self._coordinator.unavailable_error or REFUSALS.get(context.api)
        if not self._knows_all:
            self._doubt(_groups_of(message, route), now)
        if error is not None:
            self._refuse(context, message, route, error)
            return
        shared = {one for one in _groups_of(message, route) if self._coordinator.is_shared(one)}
        if context.api in _OF_OFFSETS and shared:
            fetch = self._fetches[context.ticket] = _Fetch(context, message, route, shared)
            for group_id in tuple(shared):
                self._log.read_offsets(group_id, partial(self._on_read, fetch, group_id))
            return
        self._execute(self._coordinator.handle(context, message, now))

    def _on_read(self, fetch: _Fetch, group_id: str, found: Offsets | None, now: Now) -> None:
        """Serve a request when the offsets of all its groups were read again."""
        self.election.check_lease(now)
        if fetch.context.ticket not in self._fetches:
            return
        if found is None:
            del self._fetches[fetch.context.ticket]
            self._refuse(fetch.context, fetch.message, fetch.route, ErrorCode.coordinator_not_available)
            return
        self._coordinator.adopt(group_id, found)
        fetch.missing.discard(group_id)
        if not fetch.missing:
            del self._fetches[fetch.context.ticket]
            self._execute(self._coordinator.handle(fetch.context, fetch.message, now))

    def _refuse(self, context: RequestContext, message: Any, route: Route | SplitRoute, error: ErrorCode) -> None:
        self._catalog.outbox.put(Reply(context.ticket, _refusal(context, message, route, error)))

    def _divide(self, context: RequestContext, message: Any, route: Route | SplitRoute, central: set[str], now: Now) -> None:
        """Let each coordinator answer for its groups."""
        assert isinstance(route, SplitRoute)
        asked, answered = _LISTS[context.api]
        order = [route.part.key_of(part) in central for part in route.split(message)]
        ours = tuple(group for group in getattr(message, asked) if _id_of(group) in central)
        theirs = tuple(group for group in getattr(message, asked) if _id_of(group) not in central)
        own, other = self._part_of(context), self._part_of(context)

        def join(answers: Mapping[Ticket, Any]) -> Any:
            from_us, from_them = (iter(getattr(answers[one.ticket], answered)) for one in (own, other))
            merged = [next(from_us if is_ours else from_them) for is_ours in order]
            return replace(answers[own.ticket], **{answered: tuple(merged)})

        self._await(context, join, own, other)
        self._serve(own, replace(message, **{asked: ours}), route, now)
        self._groups.handle(other, replace(message, **{asked: theirs}), now)

    def _list(self, context: RequestContext, message: Any, now: Now) -> None:
        """Add the central groups to a list of the others."""
        unavailable = self._coordinator.unavailable_error
        if unavailable is ErrorCode.coordinator_load_in_progress:
            return self._catalog.outbox.put(Reply(context.ticket, list_refused(unavailable)))
        if unavailable is not None:
            return self._groups.handle(context, message, now)
        listed, other = self._coordinator.list_groups(message), self._part_of(context)

        def join(answers: Mapping[Ticket, Any]) -> Any:
            response: list_groups_response.ListGroupsResponse = answers[other.ticket]
            return replace(response, groups=(*response.groups, *listed)) if response.error_code is ErrorCode.none else response

        self._await(context, join, other)
        return self._groups.handle(other, message, now)

    # -- requests in parts ------------------------------------------------------------------------------------------------

    def _part_of(self, context: RequestContext) -> RequestContext:
        return replace(context, ticket=next(self._tickets))

    def _await(self, context: RequestContext, join: Callable[[Mapping[Ticket, Any]], Any], *parts: RequestContext) -> None:
        one = _Parts(context, join, {part.ticket for part in parts})
        self._parts.update(dict.fromkeys(one.missing, one))

    def joined(self, effects: list[BrokerEffect]) -> list[BrokerEffect]:
        """Replace the replies to parts of requests by the replies to these."""
        if not self._parts:
            return effects
        outgoing: list[BrokerEffect] = []
        for effect in effects:
            if not isinstance(effect, Reply) or effect.ticket >= 0:
                outgoing.append(effect)
                continue
            parts = self._parts.pop(effect.ticket, None)
            if parts is None:
                continue
            parts.answers[effect.ticket] = effect.response
            parts.missing.discard(effect.ticket)
            if not parts.missing:
                outgoing.append(Reply(parts.context.ticket, parts.join(parts.answers)))
        return outgoing

    # -- other inputs -----------------------------------------------------------------------------------------------------

    def on_disconnect(self, connection: int, now: Now) -> None:
        """Note that a connection is closed, which may be a channel."""
        self.election.check_lease(now)
        self._execute(self._coordinator.on_disconnect(connection, now))

    def on_topics_changed(self, topics: Collection[str], now: Now) -> None:
        """Handle created, deleted and extended topics."""
        self.election.check_lease(now)
        self._execute(self._coordinator.on_topics_changed(topics, now))

    def on_timer(self, key: TimerKey, now: Now) -> None:
        """Handle one of the coordinator's timers."""
        self.election.check_lease(now)
        self._execute(self._coordinator.on_timer(key, now))

    def on_job(self, tag: JobTag, outcome: object, now: Now) -> None:
        """Handle the outcome of a job: the resolution of regular expressions."""
        self.election.check_lease(now)
        match tag:
            case ("regexes", str(group_id)):
                matches = outcome if isinstance(outcome, ResolvedRegexes) else None
                self._execute(self._coordinator.on_regexes_resolved(group_id, matches, now))
            case _:
                raise AssertionError(f"no such job: {tag}")

    def _execute(self, effects: Iterable[CentralCoordinatorEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Append):
                self._log.write(effect)
            elif isinstance(effect, ResolveRegexes):
                self._catalog.outbox.put(RunJob(("central", "regexes", effect.group_id), partial(resolve_all, effect)))
            else:
                assert not isinstance(effect, GoOn), "it does not leave the coordinator"
                self._catalog.outbox.put(effect)


def _config(catalog: BrokerCatalog) -> CentralConfig:
    config = catalog.config
    return CentralConfig(
        group_min_session_timeout_ms=config.group_min_session_timeout_ms,
        group_max_session_timeout_ms=config.group_max_session_timeout_ms,
        group_max_size=config.group_max_size,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
    )


def _groups_of(message: Any, route: Route | SplitRoute) -> list[str]:
    """Return the groups that a request is about."""
    if isinstance(route, Route):
        return [route.key_of(message)]
    return [route.part.key_of(part) for part in route.split(message)]


def _id_of(group: Any) -> str:
    """Return the id of a group in a request about several, which names it or says more about it."""
    return group if isinstance(group, str) else str(group.group_id)


def _refusal(context: RequestContext, message: Any, route: Route | SplitRoute, error: ErrorCode) -> Any:
    """Return the response with an error for each group. Only that to a heartbeat of a consumer group can say more."""
    if context.api is Api.CONSUMER_GROUP_HEARTBEAT and error is ErrorCode.inconsistent_group_protocol:
        return heartbeat_refused(
            error, f"group {message.group_id!r} is central: set group.protocol=central, or use another group id"
        )
    if isinstance(route, Route):
        return route.refuse(context, message, error)
    return route.join(tuple(route.part.refuse(context, part, error) for part in route.split(message)))
