"""Watching workers: when each is asked how it is, and what its answers amount to.

Belongs here: the schedule of probes, the counting of answers, the verdicts and the right to write them down. Never
here: how a worker is asked (sockets, actors, callables are adapters), and what becomes of a worker at any proxy.
"""
