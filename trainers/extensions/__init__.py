"""Chainer extensions, run between updates: evaluation, metrics, trace, checkpoints."""
