"""The command line: one module a group of commands, each command one short function.

A command declares its options and calls one function of another room, which it imports when it runs: `--help` loads
neither Chainer nor MPI. `command_line.py` lists the commands; `python_api.py` has them as functions, and
`python_run.py` a run as an object. This room imports from all others and none imports from it.
"""
