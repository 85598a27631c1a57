"""Operators on the CPU: NumPy, and passes compiled from C."""
