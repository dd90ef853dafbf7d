"""The console: one web page to watch a run, take over, label and stop; the only room with aiohttp.

Read in this order: `server` (HTTP and WebSocket), `access` (token, origin, one operator at a time),
`messages` (frames of the page), `backend` (the contract of what is behind it), `status`,
`pictures`.
"""
