"""Scripted faults: the failures that a test has a broker simulate.

``rules`` are the values, ``messages`` finds topics and groups in requests and creates responses with errors, ``table`` applies
the faults. Must not know the API of tests. Invariant: while no fault is set, nothing here is called.
"""
