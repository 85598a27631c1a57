"""A frontier: one search after another for the fewest updates to a goal, batch by batch, and what they say together.

A file belongs here if only `kilobatch frontier` needs it. Trials, ranks and their deaths are `trainers.search`. Only
the command line imports this room; `run.frontier` is the entry point.
"""
