"""What a stream server counts since it began; no channel, realm or client is ever a label."""

from dataclasses import dataclass, field, fields


@dataclass(slots=True)
class Counters:
    """Plain numbers; the event loop alone writes them."""

    streams: int = 0
    """Open now."""
    opened: int = 0
    resumed: int = 0
    """Of those opened, with a cursor."""
    refused: dict[str, int] = field(default_factory=dict)
    """By reason."""
    ended: dict[str, int] = field(default_factory=dict)
    """By reason."""
    messages: int = 0
    """Received from the store."""
    deliveries: int = 0
    """Messages handed to connections."""
    resets: int = 0
    """Clients told of a gap."""
    catch_ups: int = 0
    """Times the store was asked for what a lost link had carried."""
    malformed: int = 0
    """Messages from the store that could not be passed on; they are dropped."""
    client_publishes: int = 0
    client_publishes_refused: dict[str, int] = field(default_factory=dict)
    """By reason."""
    waiting_bytes: int = 0
    """That wait for slow clients, as of the last look."""

    def refuse(self, reason: str) -> None:
        """Count a stream that was not opened."""
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def end(self, reason: str) -> None:
        """Count a stream that ended."""
        self.ended[reason] = self.ended.get(reason, 0) + 1

    def refuse_publish(self, reason: str) -> None:
        """Count a publish of a client that was not passed on."""
        found = self.client_publishes_refused
        found[reason] = found.get(reason, 0) + 1

    def as_text(self) -> str:
        """In the exposition format that Prometheus reads."""
        lines = []
        for each in fields(self):
            value = getattr(self, each.name)
            name = f"cape_realtime_{each.name}"
            kind = "gauge" if each.name in ("streams", "waiting_bytes") else "counter"
            lines.append(f"# TYPE {name} {kind}")
            if isinstance(value, dict):
                lines += [f'{name}{{reason="{key}"}} {value[key]}' for key in sorted(value)]
            else:
                lines.append(f"{name} {value}")
        return "\n".join(lines) + "\n"
