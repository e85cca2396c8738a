"""The membership of a consumer in its group, in any protocol.

Owns the interface of a membership, the choice between the protocols, the lookup of the coordinator and the record of rebalances.
The protocols are in ``classic`` and ``consumer``, which do not import each other. Must not know commits or positions. Invariant: a
consumer is one member at a time.
"""
