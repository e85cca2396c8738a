"""Fetching: from which broker, how much, in which session.

Owns the Fetch requests, their sessions and the bound on memory. Must not know how records are decoded or groups are joined.
Invariant: what is handed on of a partition follows its position without a gap, and all of it together stays within the bound.
"""
