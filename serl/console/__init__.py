"""The console: a web page to watch a run, take over, label and stop; the only user of aiohttp.

Read in this order: `server` (HTTP and WebSocket), `access` (token, origin, one operator at a time),
`messages` (frames of the page), `backend` (the interface to the run), `status`, `pictures`.
"""
