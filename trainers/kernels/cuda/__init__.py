"""Operators on a GPU: cuDNN and CUDA kernels."""
