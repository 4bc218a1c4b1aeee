"""The realtime channel: publish and grant inside an execution, streams that reach the browser.

    from cape_stream.realtime import RealtimeContext, PublishBounds

A handler gets a `RealtimeContext` that lives as long as its execution. `server` holds the stream
server, `browser` the client that apps load. docs/realtime.md is the contract.
"""
