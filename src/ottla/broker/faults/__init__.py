"""Scripted faults: the failures that a test has a broker simulate.

``rules`` are the values, ``requests`` finds topics and groups in requests, ``answers`` creates responses with errors, ``table``
applies the faults. Must not know the API of tests. Invariant: while no fault is set, nothing here is called.
"""
