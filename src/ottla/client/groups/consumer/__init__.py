"""A member of a consumer group (KIP-848): the coordinator assigns, the member reconciles.

Owns the state of such a member and its heartbeats. Must not know the classic protocol, commits or positions. Invariant: its states
change by the table of ``states``, in one place.
"""
