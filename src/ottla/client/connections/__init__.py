"""The connections to brokers, and the requests that are sent over them.

Owns the state of each connection, and the queue of requests that wait for one. Must not know sockets, nor the meaning of a request.
Invariant: each request has exactly one outcome.
"""
