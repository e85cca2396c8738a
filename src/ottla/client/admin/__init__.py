"""What an ``Admin`` asks of a cluster.

Owns the calls of an operator, each a dialogue, and the shapes of what they tell. Must not know consumers or groups from within.
Invariant: a call ends once, with an answer or an error, within its time.
"""
