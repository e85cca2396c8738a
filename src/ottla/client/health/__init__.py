"""A consumer's metrics, the states of its managers, and the verdict on its health.

Owns the shape of ``Health``, the meters and their names. Must not know callers. Invariant: nothing here changes the consumer.
"""
