"""The examination behind `rollbook doctor`: what is looked at, and what to do about each thing that is not well.

Belongs here: one function for each thing, which looks without changing anything and says ok, warning, failed or skipped
in one line, with a fix for everything that is not ok. Never here: printing, exit codes, or mending.
"""
