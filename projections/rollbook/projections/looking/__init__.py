"""What a person is shown of the present: status, a plan before it is carried out, a verification, a wait.

Belongs here: plain data about now, and asking who has to be asked for it. Never here: the past (`history`), and how it
is printed (the adapters).
"""
