"""What a command does beside training: to plan, probe and verify, to score and export runs, to share and rerun them.

Each module is one such task, for the command line and for Python alike. This room imports from launch and below.
"""
