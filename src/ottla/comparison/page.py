"""The page "Four generations, one workload": the figures, and why they are what they are.

Owns the text. Must not know where the figures come from. Invariant: every number of a result is put in from the figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla.comparison import life
from ottla.comparison.figures import Figures, PhaseFigures
from ottla.comparison.life import Generation, Phase
from ottla.comparison.report import markdown_messages, markdown_table

PAGE = """\
# Four generations, one workload

This page is written by `ottla compare --page FILE`; do not edit it. `ottla compare` plays the same life of a group on the four
generations of Kafka's group coordination, and counts what it costs. The members, brokers and coordinators are those of
production. Without `--real` the clock, the network, the disks and ZooKeeper are simulated, as in [`ottla
simulate`](simulator.md), so that each machine gets the same figures; with it, {brokers} brokers, up to {members} members and
ZooKeeper are processes.

| generation | who decides who reads what | how a member learns of it |
|---|---|---|
| `zookeeper`, [Kafka 0.8](zookeeper-groups.md) | each member, from what is in ZooKeeper | a watch in ZooKeeper fires |
| `central`, the [draft for 0.9](central-groups.md) | one elected broker for all groups | the coordinator sends *Stop* and *Start* |
| `classic`, Kafka 0.9 and later | one of the members, for all | an answer to its next heartbeat tells it to join again |
| `consumer`, Kafka 4.0 (KIP-848) | the group's coordinator | an answer to its next heartbeat has its new target |

## The life

1. **{grow}**: {partitions} partitions; a member joins when the group has been stable for {rest:g} s.
2. **{kill}** at the same moment, with SIGKILL.
3. **{add}**.
4. **{roll}**: one after the other is stopped, and a new one started as soon as it has ended, when the group is stable again.
5. **{coordinator}**: with SIGKILL, and start its process again after {downtime:g} s. For `zookeeper`, which has no coordinator,
   ZooKeeper is killed.

Each partition gets a record every {record_interval:g} s, and each member commits every {commit_interval:g} s, and what it gives
up. A member that is silent is found after {session:g} s in each generation; it sends a heartbeat, or is pinged, every
{heartbeat:g} s. Clients look for new partitions every {metadata:g} s (default: 5 min). Brokers have sessions of
{broker_session:g} s with ZooKeeper. The rest has its defaults, such as the assignors.

## The figures, simulated

{simulated}

![The number of partitions that were read at each moment, for each generation]({picture})

- *messages*: requests and responses between members and brokers because of the group, one by one; not those for records and
  metadata.
- *ZooKeeper operations*: those of members, and those of brokers because of groups. *As issued*: a multi counts once. *As 0.8
  would issue them*: each write of a multi alone, and neither checks nor syncs, since 0.8 knew no multi. A connection's pings do
  not count.
- *time to stable*: from the beginning of a step until each partition has one live member, and each member a partition; the mean
  over the steps of a phase. After the kill of the coordinator: until a commit is accepted of each member.
- *partition-seconds unread*: how long partitions had no live member, summed over the partitions.
- *records processed twice*: each was processed at least once; the command fails otherwise.

| messages by API |{rule}
{by_api}

## Why

### To join costs a rebalance in each generation, and a heartbeat in two

A join takes {zookeeper_grow} with `zookeeper` and {central_grow} with `central`, because no member waits there: the watch fires,
or the coordinator sends *Stop*, at once. With `classic` it takes {classic_grow}, and with `consumer` {consumer_grow}: the
members learn of it from the answer to their next heartbeat, which is sent every {heartbeat:g} s here and every 3 or 5 s by
default.

While they wait, they read. So what a join costs in *unread* partitions is not that wait, but how long a member holds nothing:
with the first three generations all members give up all partitions at each join (the picture's lines reach the bottom), for
{zookeeper_grow_unread}, {central_grow_unread} and {classic_grow_unread} partition-seconds in {joins} joins. With `consumer`
only partitions that move are given up: {consumer_grow_unread}.

### A dead member costs its session in each generation

Its partitions are unread until the others know that it is dead: {zookeeper_kill}, {central_kill}, {classic_kill} and
{consumer_kill}, of a session of {session:g} s that began with its last sign of life. `classic` is the slowest for a reason:
after the first dead member is found, the group waits for the second one until its session is over, too, with all live members
that have joined again reading nothing. That is the staircase in the picture, and {classic_kill_unread} partition-seconds
instead of {consumer_kill_unread}.

### New partitions

ZooKeeper tells the members (`zookeeper`) or the coordinator (`central`) at once: {zookeeper_add} and {central_add}. With
`consumer` the coordinator knows its own cluster, and members learn with the next heartbeat: {consumer_add}. With `classic` only
the leader of the group looks, when its metadata is {metadata:g} s old: {classic_add}, and minutes with the default of 5 min.

### To roll the members costs two rebalances each

One when a member leaves, one when its successor joins. `zookeeper` needs {zookeeper_roll} and `central` {central_roll} for
both. With `classic` ({classic_roll}) and `consumer` ({consumer_roll}) the partitions of the member that left wait for the next
heartbeats of the others. (Static members, `group.instance.id`, avoid this with both; they are not used here.)

### The coordinator's death stops no reading

All members read on, with each generation: 0.0 partition-seconds. What waits is the group's next change, and the commits:
{central_coordinator} with `central` until its broker's session with ZooKeeper is over ({broker_session:g} s), another one is
elected, and the members have registered there. With `zookeeper` ({zookeeper_coordinator}), `classic` ({classic_coordinator})
and `consumer` ({consumer_coordinator}) it is the {downtime:g} s until the process is back, and the time to notice. Here Apache
Kafka is better than Ottla's brokers, which do not replicate: it moves the coordinator of these two to a replica, as soon as its
controller has noticed.

### Messages, or ZooKeeper operations

The members of `zookeeper` exchange no message with a broker because of the group. Instead each one reads, at each rebalance,
what each other one has registered: {zookeeper_operations} operations ({zookeeper_single} as 0.8 would issue them), which grow
with the square of the members. 0.8 wrote each owner and each offset alone. That is what the draft set out to end: `central`
needs {central_operations} ({central_single}), most of them writes of one broker, and pays with messages: a *Stop* and a *Start*
for each member at each rebalance, {central_pushed} together with their answers. `classic` has a JoinGroup and a SyncGroup
instead ({classic_joins}), and both generations of today need no ZooKeeper. With `consumer` the
heartbeats carry everything, and it has the fewest messages: {consumer_messages}, of which {consumer_heartbeats} are heartbeats.
The numbers include {length_shortest:.0f} to {length_longest:.0f} s of heartbeats and commits, since a life is longer where its
steps take longer.

### Records processed twice

Only the kill of members leads to them: what was processed after the last commit, up to {commit_interval:g} s of records of
{victims} members. A member that gives up partitions in a rebalance has committed them before, in each generation, and none reads on
without a right to."""

REAL = """
## The figures, on real processes

{real}

The differences to the simulated ones: a process takes time to start, which belongs to *time to stable* when members join or are
restarted; two cores are shared by all; and each member waits for its own disk, network and Python."""


def page(simulated: Sequence[Figures], real: Sequence[Figures], picture: str) -> str:
    """Return the page. ``real``: what was measured on processes, if it was. ``picture``: where the page finds its picture."""
    text = PAGE.format_map({**_settings(), **_results(simulated), "picture": picture})
    return text + (REAL.format(real=markdown_table(real)) if real else "")


def _settings() -> Mapping[str, object]:
    return {
        "brokers": life.BROKERS,
        "members": life.MEMBERS,
        "victims": life.VICTIMS,
        "joins": life.MEMBERS - 1,
        "partitions": life.PARTITIONS,
        "rest": life.REST,
        "downtime": life.DOWNTIME,
        "record_interval": life.RECORD_INTERVAL,
        "commit_interval": life.COMMIT_INTERVAL,
        "session": life.SESSION_TIMEOUT / 1000,
        "heartbeat": life.HEARTBEAT_INTERVAL / 1000,
        "metadata": life.METADATA_MAX_AGE / 1000,
        "broker_session": life.BROKER_SESSION_TIMEOUT / 1000,
        **{phase.name.lower(): f"{phase[0].upper()}{phase[1:]}" for phase in Phase},
    }


def _results(compared: Sequence[Figures]) -> Mapping[str, object]:
    by_generation = {one.generation: one for one in compared}
    pushed, joins = ("Stop", "Start"), ("JoinGroup", "SyncGroup")
    heading, rule, *by_api = markdown_messages(compared).splitlines()
    results: dict[str, object] = {
        "simulated": markdown_table(compared),
        "rule": f"{heading.removeprefix('| |')}\n{rule}",
        "by_api": "\n".join(by_api),
        "central_pushed": sum(by_generation[Generation.CENTRAL].messages[api] for api in pushed),
        "classic_joins": sum(by_generation[Generation.CLASSIC].messages[api] for api in joins),
        "consumer_heartbeats": by_generation[Generation.CONSUMER].messages["ConsumerGroupHeartbeat"],
        "length_shortest": min(one.duration for one in compared),
        "length_longest": max(one.duration for one in compared),
    }
    for generation, one in by_generation.items():
        results[f"{generation}_operations"] = one.operations
        results[f"{generation}_single"] = one.single_operations
        results[f"{generation}_messages"] = one.messages.total()
        for phase in one.phases:
            results.update(_phase_results(f"{generation}_{phase.phase.name.lower()}", phase))
    return results


def _phase_results(name: str, phase: PhaseFigures) -> Mapping[str, object]:
    return {name: f"{phase.time_to_stable:.2f} s", f"{name}_unread": f"{phase.unread:.1f}"}
