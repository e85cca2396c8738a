"""The cluster's metadata.

Owns Metadata requests, the snapshot of nodes, topics and leaders, and the topics that a pattern matches. Must not know groups,
positions or connections. Invariant: a snapshot never changes; new information makes another one.
"""
