"""Data directories that are damaged at random, and what a broker must still make of them.

``batches`` and ``expected`` must not use the code under test: they say from the bytes on disk what has to be served.
"""
