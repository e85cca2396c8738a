"""A member of a classic group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and the assignment by the leader.

Owns the state of such a member and its requests. Must not know the consumer protocol, commits or positions. Invariant: its states
change by the table of ``states``, in one place.
"""
