"""What the log says: the fold of all facts, into the roster of workers and the ledger of registrations.

Belongs here: one worker's life and its transition table, the indexes over workers, what is kept of texts and ids, and
the digest of it all. Never here: what ought to be done about it (`deciding`), and reading the log (`log`).
"""
