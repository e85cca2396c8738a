"""An operator's calls for the groups of Kafka 0.8's consumers, which keep their members and offsets in ZooKeeper.

Owns what the nodes of a group mean, and which operations change them. Must not know kazoo, connections or time. Invariant: a group
with a live member is never changed.
"""
