"""A member of a classic group: it joins, may be made the leader and assign, syncs, sends heartbeats, leaves.

Owns the state of such a member and its requests. Must not know the consumer protocol, commits or positions. Invariant: its states
change by the table of ``states``, in one place.
"""
