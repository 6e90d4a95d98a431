"""Archives: a fleet's facts in files, written from the log, read in its place, and made a log again.

Belongs here: the format of the files, and what is done to a stream to shorten or refill it. Never here: what the facts
mean.
"""
