"""The ways to the brokers: which are open, and which request takes which.

Owns the links, the queue of requests that wait for one, and the effects that the shell carries out. Must not know what a request is
about. Invariant: each request comes to exactly one end.
"""
