"""The realtime channel: publish and grant inside an execution, streams that reach the browser.

A handler gets a `context.RealtimeContext` that lives as long as its execution. `server` holds the
stream server, `calls` the sockets for requests, and the folder `browser` the client that apps load.
docs/realtime.md is the contract.
"""
