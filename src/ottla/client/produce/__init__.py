"""The producer's part of a client: drains the record accumulator, and keeps the sequence numbers of an idempotent producer.

Owns the managers that a producer has and a consumer does not. Must not know sockets, threads or clocks. Invariant: a record whose
outcome is known is not sent again.
"""
