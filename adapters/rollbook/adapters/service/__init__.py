"""The controller's queries and commands over NATS: a micro service that the leader serves, and its client.

Belongs here: the messages of both sides (`messages`), how they are cut to what a server takes (`frames`), who answers
(`server`, `verbs`) and who asks (`client`). Never here: decisions; an answer is what the projections say.

Subjects are `rollbook-rpc.<fleet>.<verb>`, outside the stream: a question is no fact.
"""
