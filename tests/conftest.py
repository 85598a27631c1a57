"""Patches Chainer before any test imports it."""

import trainers.compat  # noqa: F401
