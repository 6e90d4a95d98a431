"""One lane per proxy: what is decided is carried out, read back and written down, one key at a time.

Belongs here: the lane, its agenda, its steps and what they ask before they call. Never here: the decision itself
(`deciding`), and what concerns the whole fleet (`leading`).
"""
