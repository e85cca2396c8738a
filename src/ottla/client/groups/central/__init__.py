"""Members of groups of the central coordinator: one broker, elected in ZooKeeper, rebalances all groups over channels.

Owns the membership, the member's channel to the coordinator, and the frames on it. Must not know commits or user code. Invariant: a
member reads partitions of one generation only, and only while the coordinator surely counts it as alive.
"""
