"""Restarting what is down: which cells are due, who may restart each, and when it is enough.

Belongs here: claims and attempts as the fold keeps them, the decision what is due, and the recoverer that carries it
out through the `WorkerManager` port. Never here: how a process is started or killed, and what becomes of a worker at
any proxy.
"""
