"""What happens beside the updates: evaluation, metrics, trace, checkpoints. Chainer's extension conventions."""
