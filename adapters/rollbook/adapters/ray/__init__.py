"""Workers as Ray actors: one manager actor per fleet that starts them, watches them and starts them again.

Belongs here: everything that speaks Ray. `spec` says what a worker is; `host` is the actor around it, `guest` and
`command` what runs in that; `rank` is one worker as the manager sees it, `crew` a cell of them, and `keeper` keeps
that alive; `actor` is the manager; `manager` is how a trainer talks to it, `provider` how the controller does, and
`cells` how a recoverer does. `actors` does without a manager, where a framework starts the workers. Ray's errors end in
`border`.

Never here: a decision about proxies. The manager publishes facts, and the projection decides. Ray is imported where it
is used, so that what only names its types needs no `ray` extra.
"""
