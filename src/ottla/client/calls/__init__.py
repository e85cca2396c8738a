"""The application's half of a consumer: its public calls, as generators that say what they wait for.

Owns the consumed positions, the listeners and all that runs on the application's thread. Must not know the request managers: it
sends commands and reads notifications. Invariant: no user code runs anywhere but inside a call.
"""
