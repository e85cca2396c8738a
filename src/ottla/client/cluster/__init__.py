"""What the cluster looks like to a client.

Owns Metadata requests, the snapshot of nodes, topics and leaders, and which topics a pattern matches. Must not know groups,
positions or connections. Invariant: a snapshot never changes; newer information is in the next one.
"""
