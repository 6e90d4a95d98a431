"""The proxies: routers in front of the workers, each driven through its own admin API.

Belongs here: one module per kind of router that implements `ports.Proxy`, what they share (canonical URLs, one HTTP
client that translates errors), the mapping from a kind's name to its implementation, and the readiness probe of
workers.

Never belongs here: a decision about who should be registered, a retry, a deadline, or a memory of what was registered.
An adapter does one call and says what was answered; the reconciler reads back and decides.
"""
