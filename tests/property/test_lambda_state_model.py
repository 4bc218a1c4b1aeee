"""A lambda's cursor against a dumb model that remembers every event one by one."""

from hypothesis import given
from hypothesis import strategies as st

from cape_stream.core.inflight.lambda_state import JobRecord, LambdaState, Parked
from cape_stream.core.inflight.subject import SubjectState

SUBJECT = SubjectState("S", [-1], -1)
START = 10

moves = st.lists(
    st.tuples(st.sampled_from(["issue", "finish", "park", "retry", "split"]), st.integers(0, 99)),
    max_size=40,
)


class Model:
    """Each event is out (in a job), parked or done."""

    def __init__(self) -> None:
        self.what: dict[int, str] = {}

    def cursor(self) -> int:
        """The newest event such that it and all before it are done."""
        newest = START
        for sequence in sorted(self.what):
            if self.what[sequence] != "done":
                break
            newest = sequence
        return newest


class Play:
    """One lambda state and its model, moved together."""

    def __init__(self) -> None:
        self.state = LambdaState(START)
        self.model = Model()
        self.count = 0

    def out(self, sequences: list[int]) -> None:
        self.count += 1
        record = JobRecord(f"J{self.count}", SUBJECT, 0, sequences, 1, 0, 0, 1)
        self.state.add_job(record)
        self.model.what.update(dict.fromkeys(sequences, "out"))

    def issue(self, pick: int) -> None:
        """One to four fresh events, with gaps."""
        first = self.state.high + 1 + pick % 3
        sequences = [first + 2 * place for place in range(1 + pick % 4)]
        self.state.high = sequences[-1]
        self.out(sequences)

    def finish(self, pick: int) -> None:
        """A job ends; by its parity every other event is parked instead of done."""
        if self.state.jobs:
            record = self.state.jobs[pick % len(self.state.jobs)]
            self.state.remove_job(record)
            failed = list(record.sequences)[1::2] if pick % 2 else []
            for sequence in failed:
                self.state.add_parked(sequence, Parked(1, 1, 0))
                self.model.what[sequence] = "parked"
            done = [each for each in record.sequences if each not in failed]
            self.model.what.update(dict.fromkeys(done, "done"))
            self.state.settle(done)

    def park(self, pick: int) -> None:
        """A whole job is given up."""
        if self.state.jobs:
            record = self.state.jobs[pick % len(self.state.jobs)]
            self.state.remove_job(record)
            for sequence in record.sequences:
                self.state.add_parked(sequence, Parked(1, 1, 0))
                self.model.what[sequence] = "parked"

    def retry(self, pick: int) -> None:
        """A parked event goes out again."""
        if self.state.parked:
            sequence = sorted(self.state.parked)[pick % len(self.state.parked)]
            self.state.remove_parked(sequence)
            self.out([sequence])

    def split(self, pick: int) -> None:
        """One event of a larger job is done by other means."""
        larger = [job for job in self.state.jobs if len(job.sequences) > 1]
        if larger:
            record = larger[pick % len(larger)]
            sequence = record.sequences[pick % len(record.sequences)]
            self.state.shrink_job(record, sequence)
            self.model.what[sequence] = "done"
            self.state.settle([sequence])


@given(moves)
def test_cursor_is_the_newest_event_below_which_nothing_is_open(
    moves: list[tuple[str, int]],
) -> None:
    """Whatever is issued, finished, put aside, retried or split, in any order."""
    play = Play()
    for move, pick in moves:
        getattr(play, move)(pick)
        state, what = play.state, play.model.what

        assert state.cursor == play.model.cursor()
        assert all(state.has_done(each) is (what[each] == "done") for each in what)
        open_ = {each for each in what if what[each] != "done"}
        assert state.accounted() - state.done == open_
        assert state.done == {e for e in what if what[e] == "done" and e > state.cursor}
        firsts = [job.sequences[0] for job in state.jobs]
        assert firsts == sorted(firsts)
        assert state.is_plain() is (not open_)
