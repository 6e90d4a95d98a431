"""The decisions: what the facts mean, who belongs in which proxy, and the loops that make it so.

Belongs here: the fold and its transition table, gates, plan, projector, the lanes and the controller over them, the
judgement of health checks, the order of restarts, what the past tells, and the ports (Protocols) that they need. Never
here: nats, ray, HTTP, environment variables, wall clocks, files. Time is an argument or the `Clock` port.
"""
