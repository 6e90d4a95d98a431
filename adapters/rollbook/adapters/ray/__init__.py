"""Workers as Ray actors: one manager actor per fleet that starts them, watches them and starts them again.

Belongs here: everything that speaks Ray. `spec` says what a worker is; `host` is the actor around it; `keeper` keeps
one worker alive; `actor` is the manager; `manager` is how a trainer talks to it, and `provider` how the controller
does. Ray's errors end in `border`.

Never here: a decision about proxies. The manager publishes facts, and the projection decides. Ray is imported where it
is used, so that what only names its types needs no `ray` extra.
"""
