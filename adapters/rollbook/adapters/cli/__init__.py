"""The command line `rollbook`: one module for each command, registered in `main`.

Belongs here: arguments, what is printed where, exit codes. Data goes to standard output, everything else to standard
error. Never here: anything that another program might want too. Ray, nats, aiohttp and rich are imported inside the
commands that use them, so that `rollbook --help` is quick.
"""
