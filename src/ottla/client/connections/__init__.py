"""The connections to brokers, and the requests that are sent over them.

Owns the state of each connection, the queue of requests that wait for one, and the effects that the shell performs. Must not know
the meaning of a request. Invariant: each request has exactly one outcome.
"""
