"""A member of a group, whichever protocol it speaks.

Owns the vocabulary of a membership, the choice between the protocols, the look-up of the coordinator and the record of rebalances;
how each protocol works is in ``classic`` and ``consumer``, which never see each other. Must not know commits or positions.
Invariant: a consumer is one member at a time.
"""
