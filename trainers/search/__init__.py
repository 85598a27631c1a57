"""Hyperparameter searches: an Optuna study whose trials are training runs on groups of MPI ranks.

A file belongs here if only searches need it: samplers, storages, the supervisor and its groups of ranks, reports. It
may import from every other room but `trainers.frontier`, which runs one search after another; else only the command
line imports it. `start.search` is the entry point.
"""
