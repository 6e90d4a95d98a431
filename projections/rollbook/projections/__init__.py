"""The decisions: what the facts mean, who belongs in which proxy, and the loops that make it so.

Belongs here: the fold and its transition table, gates, plan, projector, reconciler, and the ports (Protocols) that they
need. Never here: nats, ray, HTTP, environment variables, wall clocks, files. Time is an argument or the `Clock` port.
"""
