"""Who belongs in which proxy, and why: pure functions over the state and one listing.

Belongs here: the gates, whose an entry is, the plan, and how sure a removal is. Never here: calls, waiting, time that
is not an argument.
"""
