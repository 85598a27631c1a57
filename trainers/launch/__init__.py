"""From a request to ranks that train it: `request` and `preflight` check it, `start_ranks` is the parent process and
`join_ranks` is one of its ranks.

Here enter checks that end a command before anything is written, and how ranks begin and end. This room imports from
`training` and the rooms below it; `tasks`, `search` and `commands` import from it.
"""
