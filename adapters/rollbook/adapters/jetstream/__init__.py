"""The log on NATS JetStream: connection, embedded server, provisioning, reading and appending, snapshots, leadership.

Belongs here: everything that speaks NATS. Never here: a decision about a fact's meaning; payloads are bytes until
`rollbook.events` decodes them. nats-py's errors end here: `connect` and `JetStreamLog` translate them.
"""
