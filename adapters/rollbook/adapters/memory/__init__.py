"""The ports in memory: what the deterministic simulation runs on, and what a program can embed instead of servers.

Each passes the same contract suite as the real implementation of its port. They have no randomness and no clock of
their own: a `random.Random` and a `Clock` are handed in. What goes wrong in them is said by the caller: faults,
outages, slowness. `virtual` is the event loop on which an hour takes milliseconds.
"""
