"""The training loop: train, updater, mean gradient, evaluation, metrics and extensions."""
