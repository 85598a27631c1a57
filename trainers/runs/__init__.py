"""One run as processes and files: ranks, heartbeat and watchdog, run folder, checkpoint, progress."""
