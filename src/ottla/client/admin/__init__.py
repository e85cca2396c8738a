"""The calls of an ``Admin``.

Owns the requests of each call and the values that it returns. Must not know consumers or the state of a member. Invariant: a call
ends exactly once, with a result or an error, within its timeout.
"""
