"""The edges: everything with a socket, a thread, a clock or an environment variable.

Belongs here: the JetStream publisher, log reader and embedded server; Ray; the proxies' admin APIs; health checks and
listeners for the RL frameworks; the in-memory implementations of the ports; settings, logs, the command line, the web
page, and `bootstrap`, the one place where all of it is put together. Ids and times are made here and handed inwards.

Never belongs here: a decision about who should be registered. That is `rollbook.projections`, and an adapter that
needs one asks for it. Errors of foreign libraries are translated at this border and do not pass it. Nothing is built
or connected at import time, and optional libraries are imported where they are used.
"""
