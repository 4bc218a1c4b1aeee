"""What goes wrong under a driver with a seed: odds, and the dice that draw by them."""

from dataclasses import dataclass
from enum import StrEnum

from cape_stream.adapters.simulated import Dice, Faults


@dataclass(slots=True, frozen=True, kw_only=True)
class Chaos:
    """Odds, each in [0, 1]. A driver with a seed has these unless it is given others."""

    crash: float = 0.02
    """Before a handler runs: the dispatcher dies, at once or amid what it does next."""
    rebalance: float = 0.02
    """Before a handler runs: a second dispatcher joins, or leaves."""
    lost_ping: float = 0.1
    """Of a published event: nobody hears of it before the next refresh."""
    lost_status: float = 0.05
    """After a handler ran: its worker dies before it has reported."""
    late_status: float = 0.05
    """After a handler ran: its report comes once the job was given up, up to two timeouts later."""
    duplicate_status: float = 0.1
    """After a handler ran: its report comes twice."""
    source_failure: float = 0.02
    """Of a call to the source: it fails."""
    faults_max: int = 100
    """After so many, nothing goes wrong any more: so every scenario can come to its end."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            odds = getattr(self, name)
            if name == "faults_max":
                if odds < 0:
                    raise ValueError(f"Chaos(faults_max={odds}): write a number >= 0")
            elif not 0 <= odds <= 1:
                raise ValueError(f"Chaos({name}={odds}): odds lie between 0 and 1")


NO_CHAOS = Chaos(
    crash=0,
    rebalance=0,
    lost_ping=0,
    lost_status=0,
    late_status=0,
    duplicate_status=0,
    source_failure=0,
    faults_max=0,
)


class Fate(StrEnum):
    """What becomes of a report."""

    ARRIVES = "arrives"
    LOST = "lost"
    LATE = "late"
    TWICE = "twice"


class ChaosDice(Dice):
    """Draws faults by their odds until there were enough of them.

    Args:
        seed: two dice of one seed draw alike.
        chaos: the odds.
    """

    def __init__(self, seed: int, chaos: Chaos) -> None:
        super().__init__(seed, Faults(source_raise=chaos.source_failure))
        self.chaos = chaos
        self.count = 0
        """How many there were."""

    def happens(self, probability: float) -> bool:
        """Whether a fault happens; it is counted."""
        if self.count >= self.chaos.faults_max or not super().happens(probability):
            return False
        self.count += 1
        return True

    def fate(self) -> Fate:
        """What becomes of one report."""
        chaos = self.chaos
        if self.happens(chaos.lost_status):
            return Fate.LOST
        if self.happens(chaos.late_status):
            return Fate.LATE
        return Fate.TWICE if self.happens(chaos.duplicate_status) else Fate.ARRIVES
