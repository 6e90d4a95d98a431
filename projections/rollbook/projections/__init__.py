"""The decisions: what the facts mean, who belongs in which proxy, and the loops that make it so.

Never here: nats, ray, HTTP, environment variables, wall clocks, files. Time is an argument or the `Clock` port. Each
package says what belongs in it; one imports only from those below it (`pyproject.toml` holds them to it)::

    history     what the fleet looked like, what changed and why
    leading     what one process does for the whole fleet
    recovery    who is restarted, by whom, how often
    looking     status, plans, verification
    health      when each worker is asked how it is, and what its answers amount to
    lanes       one per proxy: carry out, read back, write down
    deciding    gates, plan, evidence
    log         reading, snapshots, fenced writing
    state       the fold: roster and ledger
    policy      what the operator decided in advance
    ports       what is needed from outside
"""
