"""The app: two methods. Who may hear what, and who says what, is decided here."""

from cape_stream.ports.contexts import PublishBounds
from cape_stream.realtime.context import RealtimeContext


def join(ctx: RealtimeContext, user: str) -> str:
    """Let a user hear the room and show that they type; empty for whom it is not open."""
    if not user:
        return ""
    return ctx.grant(["room"], publish=PublishBounds(("room",), ("typing",)), holder=user).token


def say(ctx: RealtimeContext, user: str, text: str) -> None:
    """Tell the room."""
    ctx.publish("room", {"user": user, "text": text})
