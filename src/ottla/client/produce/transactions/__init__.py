"""The transactions of a producer: their states, their requests to the coordinators, and the calls that wait for them.

Must not know how batches are filled or sent. Sources: KIP-98, KIP-360, KIP-447, KIP-890.
"""
