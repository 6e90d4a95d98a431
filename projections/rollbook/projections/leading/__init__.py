"""What one process does for the whole fleet while it leads: the lanes, leases that run out, observers that fall silent.

Belongs here: the controller, what it is built from, and its watches over the fleet. Never here: one proxy's business
(`lanes`).
"""
