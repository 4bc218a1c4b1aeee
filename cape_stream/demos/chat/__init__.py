"""A chat on the realtime channel, in one process and without services.

    python -m cape_stream.demos.chat          then open the address it prints, in two windows

`app` is all that an author writes; `stage` is what the platform does around it.
"""
