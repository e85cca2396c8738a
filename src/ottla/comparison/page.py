"""The page "Four generations, one workload": the figures, and why they are what they are.

Owns the text. Must not know where the figures come from. Invariant: every number of a result is put in from the figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla.comparison import life
from ottla.comparison.figures import Figures, PhaseFigures
from ottla.comparison.life import Phase
from ottla.comparison.report import markdown_messages, markdown_table

PAGE = """\
# Four generations, one workload

This page is written by `ottla compare --page FILE`; do not edit it. `ottla compare` plays the same life of a group on the four
generations of Kafka's group coordination, and counts what it costs. The members, brokers and coordinators are those of
production. Without `--real` the clock, the network, the disks and ZooKeeper are simulated, as in [`ottla
simulate`](simulator.md), so that each machine gets the same figures; they are means of {lives} lives. With `--real` a life
takes place on processes: {brokers} brokers, up to {members} members, and ZooKeeper.

| generation | who decides who reads what | how a member learns of it |
|---|---|---|
| `zookeeper`, [Kafka 0.8](zookeeper-groups.md) | each member, from what is in ZooKeeper | a watch in ZooKeeper fires |
| `central`, the [draft for 0.9](central-groups.md) | one elected broker for all groups | the coordinator sends *Stop* and *Start* |
| `classic`, Kafka 0.9 and later | one of the members, for all | an answer to its next heartbeat tells it to join again |
| `consumer`, Kafka 4.0 (KIP-848) | the group's coordinator | an answer to its next heartbeat has its new target |

## The life

1. **{grow}**: {partitions} partitions; a member joins when the group has been stable for {rest:g} to {longest_rest:g} s.
2. **{kill}** at the same moment, with SIGKILL.
3. **{add}**.
4. **{roll}**: one after the other is stopped, and a new one is started as soon as it has ended.
5. **{coordinator}**: with SIGKILL, and start its process again after {downtime:g} s. For `zookeeper`, which has no coordinator,
   ZooKeeper is killed.

Each partition gets a record every {record_interval:g} s, and each member commits every {commit_interval:g} s, and what it gives
up. A member that is silent is found after {session:g} s in each generation; a heartbeat, or a *Ping*, is sent every
{heartbeat:g} s. (Kafka's default is 3 s for `classic` and 5 s for `consumer`.) Clients look for new partitions every
{metadata:g} s (default: 5 min). Brokers have sessions of {broker_session:g} s with ZooKeeper. The rest has its defaults, such
as the assignors.

## The figures, simulated

{simulated}

![The number of partitions that had a live member at each moment, for each generation]({picture})

- *messages*: requests and responses between members and brokers because of the group, one by one; not those for records and
  metadata, and not those between a broker and ZooKeeper.
- *ZooKeeper operations*: those of members, and those of brokers because of central groups. *As issued*: a multi counts once.
  *As 0.8 would issue them*: each write of a multi alone, and no checks, since 0.8 knew no multi. Syncs and the pings of a
  connection do not count.
- *time to stable*: from the beginning of a step until each partition has one live member, and each member a partition; the mean
  over the steps of a phase. After the kill of the coordinator: until a commit of each member is accepted that it has sent
  since.
- *partition-seconds unread*: how long partitions had no live member, summed over the partitions. Whether the leader of a
  partition runs does not matter.
- *records processed twice*: each was processed at least once; the command fails otherwise.

{by_api}

## Why

### A join: who waits for a heartbeat

With `zookeeper` ({zookeeper_grow}) and `central` ({central_grow}) no member waits: the watch fires, or the coordinator sends
*Stop*, at once. With `classic` ({classic_grow}) the group waits for the next heartbeat of each member; on average that is half
an interval. With `consumer` ({consumer_grow}) it is a whole one: the first answer to the new member has no partitions, since
the others must give some up first, and it learns that they have with its second heartbeat.

What is unread is another matter. With the first three generations all members give up all partitions at each join, but only for
some milliseconds: {zookeeper_grow_unread}, {central_grow_unread} and {classic_grow_unread} partition-seconds in {joins} joins.
In the picture these are the lines that reach the bottom. With `consumer` only the partitions that move are given up, and all
others are read on; but those that move wait for the new member's heartbeat: {consumer_grow_unread}. The shorter the heartbeat,
and the more time the members need to stop, the better `consumer` is.

### A dead member: its session

The partitions of the two dead members are unread until the others know that they are dead: {zookeeper_kill}, {central_kill},
{classic_kill} and {consumer_kill}, of a session of {session:g} s that began with their last sign of life, up to a heartbeat
before the kill. With `classic` and `consumer` the others learn of it from their next heartbeats, and with `classic` those that
have joined again read nothing until the last one has: the steps in the picture. The members had {zookeeper_kill_lost:.1f}
partitions, {central_kill_lost:.1f}, {classic_kill_lost:.1f} and {consumer_kill_lost:.1f}: most of what is unread is that number
times the time, and with `consumer` it is lower because its assignor, `uniform`, had given them fewer than `range`.

### New partitions: who looks

ZooKeeper tells the members (`zookeeper`) or the coordinator (`central`) at once: {zookeeper_add} and {central_add}. With
`consumer` the coordinator knows its own cluster, and members learn with their next heartbeats: {consumer_add}. With `classic`
only the leader of the group looks, when its metadata is {metadata:g} s old: {classic_add} on average, and minutes with the
default. The new partitions are unread meanwhile: {zookeeper_add_unread}, {central_add_unread}, {classic_add_unread} and
{consumer_add_unread} partition-seconds.

### A restart: one rebalance or two

A restart is a leave and a join. `zookeeper` ({zookeeper_roll}) and `central` ({central_roll}) see each at once, and rebalance
twice; a new process has its partitions {central_roll} after the old one began to stop. With `classic` ({classic_roll}) the
new member often joins before the others have heard that the old one has left; then one rebalance does for both:
{classic_roll_syncs:.0f} SyncGroups, where {restarts} restarts in a group of {left} would need {restart_syncs} with one
rebalance each, and {twice_restart_syncs} with two. With `consumer` ({consumer_roll}) the partitions of the old member go to the
others, and some of them on to the new one. Unread are those of the old member until the next heartbeats of the others, with
`classic` and `consumer`, and all partitions during each rebalance, with all but `consumer`: {zookeeper_roll_unread},
{central_roll_unread}, {classic_roll_unread} and {consumer_roll_unread} partition-seconds. (Static members, `group.instance.id`,
avoid most of this; they are not used here.)

### The coordinator's death: members keep what they have

With each generation all members keep their partitions: {zookeeper_coordinator_unread}, {central_coordinator_unread},
{classic_coordinator_unread} and {consumer_coordinator_unread} partition-seconds. What waits is the group's next change, and the
commits: {central_coordinator} with `central` until the session of its broker with ZooKeeper is over ({broker_session:g} s),
another one is elected, and the members have registered there. With `zookeeper` ({zookeeper_coordinator}), `classic`
({classic_coordinator}) and `consumer` ({consumer_coordinator}) it is the {downtime:g} s until the process is back, and the time
until members notice; Apache Kafka would move the coordinator of the latter two to a replica. Ottla's brokers do not replicate.
For the same reason the partitions that the dead broker leads have no new records for these {downtime:g} s; with `zookeeper`,
where no broker dies, all have.

### Messages, or ZooKeeper operations

The members of `zookeeper` exchange no message with a broker because of the group. Instead each one reads at each rebalance what
each other one has registered, so these reads grow with the square of the members: {zookeeper_operations:.0f} operations, of
which {zookeeper_offsets:.0f} are about committed offsets. 0.8 wrote each owner and each offset alone: {zookeeper_single:.0f}. A
change of the members fires a watch at each of them: {zookeeper_watches:.0f}.

That is what the draft set out to end. `central` has {central_operations:.0f} operations, {central_offsets:.0f} of them about
committed offsets, and pays with messages: a *Stop* and a *Start* for each member at each rebalance, {central_pushed:.0f} with
their answers, and a look-up of the committed offsets after each Start ({central_fetches:.0f} OffsetFetches). `classic` has a
JoinGroup and a SyncGroup instead ({classic_joins:.0f}), and one more JoinGroup of each new member, which gets its id by that;
its OffsetFetches ({classic_fetches:.0f}) have the same reason. Neither it nor `consumer` needs ZooKeeper. With `consumer`
heartbeats carry everything ({consumer_heartbeats:.0f}), and members look up the offsets of what is new to them only
({consumer_fetches:.0f}).

Heartbeats and commits depend on how long the life is, {length_shortest:.0f} to {length_longest:.0f} s. Look-ups of the
coordinator (FindCoordinator, Consult) are two messages for each new process; the rest, most of them, are asked while the
coordinator is dead.

### Records processed twice

What a killed member had processed after its last commit is processed again, up to {commit_interval:g} s of the records of its
partitions. A member that gives up partitions in a rebalance commits them before, in each generation. So these numbers are about
commits, and differ by chance.
"""

REAL = """
## The figures, on real processes

One life of each generation.

{real}

How they differ from the simulated ones:

- *Time to stable* includes the start of a process when a member joins or is restarted, and for the last phase of `zookeeper`
  the start of ZooKeeper's JVM, some seconds in which nothing can be committed.
- Members take some 0.1 s to stop and to begin again, since all processes share the cores of one machine; so a rebalance in
  which all partitions are given up costs more than in the simulator, where it takes milliseconds.
- More messages and operations have the same reason: the life is longer, with more heartbeats and commits.
"""


def page(simulated: Sequence[Figures], real: Sequence[Figures], picture: str) -> str:
    """Return the page. ``real``: what was measured on processes, if it was. ``picture``: where the page finds its picture."""
    text = PAGE.format_map({**_settings(), **_results(simulated), "picture": picture})
    return text + (REAL.format(real=markdown_table(real)) if real else "")


def _settings() -> Mapping[str, object]:
    left = life.MEMBERS - life.VICTIMS
    return {
        "brokers": life.BROKERS,
        "members": life.MEMBERS,
        "joins": life.MEMBERS - 1,
        "left": left,
        "restarts": left,
        # Each member sends one, and each has a response.
        "restart_syncs": 2 * left * left,
        "twice_restart_syncs": 2 * left * (left - 1 + left),
        "partitions": life.PARTITIONS,
        "rest": life.REST,
        "longest_rest": life.REST + life.HEARTBEAT_INTERVAL / 1000,
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
    results: dict[str, object] = {
        "lives": compared[0].lives,
        "simulated": markdown_table(compared),
        "by_api": markdown_messages(compared),
        "length_shortest": min(one.duration for one in compared),
        "length_longest": max(one.duration for one in compared),
    }
    for one in compared:
        name = one.generation.value
        results[f"{name}_operations"], results[f"{name}_single"] = one.traffic.operations, one.traffic.single_operations
        results[f"{name}_offsets"], results[f"{name}_watches"] = one.traffic.offset_operations, one.traffic.notifications
        results[f"{name}_pushed"] = one.traffic.total("Stop", "Start")
        results[f"{name}_joins"] = one.traffic.total("JoinGroup", "SyncGroup")
        results[f"{name}_heartbeats"] = one.traffic.total("ConsumerGroupHeartbeat")
        results[f"{name}_fetches"] = one.traffic.total("OffsetFetch")
        results[f"{name}_kill_lost"] = one.of(Phase.KILL).unread_at_once
        results[f"{name}_roll_syncs"] = one.of(Phase.ROLL).traffic.total("SyncGroup")
        for phase in one.phases:
            results.update(_phase_results(f"{name}_{phase.phase.name.lower()}", phase))
    return results


def _phase_results(name: str, phase: PhaseFigures) -> Mapping[str, object]:
    return {name: f"{phase.time_to_stable:.2f} s", f"{name}_unread": f"{phase.unread:.1f}"}
