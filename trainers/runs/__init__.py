"""One run as processes and files: ranks, heartbeats and watchdog, run folder, checkpoints, progress.

What starts, watches, records or ends a run enters here; arithmetic on gradients or weights does not. This room imports
from no other room of trainers.

Where a dead rank is noticed: `heartbeat` (each rank writes one), `watchdog` (ranks read those of the others; the parent
waits for the first ones),
`rank_exits` (the parent records who exits first), `stack_dump` (what the main thread does, and whether it waits).
"""
