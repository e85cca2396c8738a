"""Scripted faults: what a test tells a broker to do wrong, and when.

``rules`` are the values, ``requests`` says what a request names, ``answers`` makes an answer that carries an error, ``table`` is
what the core asks. Must not know who scripts the faults. Invariant: while no fault is set, nothing here is called.
"""
