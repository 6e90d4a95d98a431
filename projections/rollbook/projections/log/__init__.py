"""From the log to a state, and back into the log: reading, catching up, snapshots, and fenced writing.

Belongs here: the single consumer, the snapshots it starts from and leaves behind, the authority to write, and what is
left to do when facts were lost. Never here: what a fact means (`state`).
"""
