"""The pytest plugin, loaded by pytest wherever Ottla is installed; its fixtures come with the embedded broker.

Owns the fixtures; must not know how a broker works. Invariant: loading it imports nothing, since every test run on a machine with
Ottla loads it.
"""
