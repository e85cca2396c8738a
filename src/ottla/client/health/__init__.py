"""How a consumer is: what it counts, what its managers know of themselves, and the verdict.

Owns the shape of ``Health``, the meters and their names. Must not know callers. Invariant: it only looks:
nothing is changed by it.
"""
