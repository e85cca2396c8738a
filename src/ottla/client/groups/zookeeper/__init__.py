"""Members of the groups of Kafka 0.8, which coordinate through ZooKeeper: each member computes the assignment for itself.

Owns the membership, the reading of the group's nodes, and the owner nodes. Must not know kazoo, commits or user code. Invariant:
a member reads partitions only while it holds their owner nodes in its present session.
"""
