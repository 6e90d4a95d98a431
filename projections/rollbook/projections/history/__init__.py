"""Reading history: what the fleet looked like, what changed and why, and whether the log still says the same.

Belongs here: everything that is a function of recorded facts, of the fold and of a policy. Never here: files, sockets,
formats of output. What history is read from is the port `Past`: the log, or an archive of it.
"""
