"""The lane's books: table cases, every interleaving of small pipelines with crashes, and random long runs."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.engine.toy import Config, World, bulky, random_config, search, states_by_position, uninterrupted
from zephon_jax.engine.lane import LaneBooks, ReplayFilter
from zephon_jax.engine.receipts import Admission, Receipt
from zephon_jax.errors import ContractViolation, DataError
from zephon_jax.origin import CHUNK, LINEAGE, Origin
from zephon_jax.types import WorkChunk


def work(n, start=0):
    return WorkChunk(np.zeros(n, np.int32), np.zeros(n, np.int32), np.arange(start, start + n))


def admit(*chunks):
    return Receipt(admitted=[Admission(c, work(n), {"p": c + 1}) for c, n in chunks])


def rows(*cursors, splits=None):
    """One contributor per cursor (chunk, offset), each the last child of its sample."""
    parts = [Origin.of_chunk(c, np.array([o]), 0) for c, o in cursors]
    origin = Origin.concat(parts)
    return origin if splits is None else origin.group(np.array(splits))


def books(every=2):
    return LaneBooks(7, every, {"p": 0})


# -- table ---------------------------------------------------------------------------------------------------------
def test_nothing_delivered_keeps_nothing():
    b = books()
    b.settle(admit((0, 2), (1, 2)))
    s = b.snapshot()
    assert (s.chunks, s.source, s.cursor, s.boundaries, s.next_chunk) == ((), {"p": 0}, None, (), 0)


def test_keeps_the_epoch_up_to_its_highest_delivered_chunk():
    """C1, C9, P1: chunk 1 was drawn but contributed nothing, so it is drawn again."""
    b = books(every=3)
    b.settle(admit((0, 2), (1, 2), (2, 2)))
    b.settle(Receipt(rows=rows((0, 1))), rounds=1)
    s = b.snapshot()
    assert (s.first, len(s.chunks), s.source, s.delivered, s.cursor, s.boundaries) == (0, 1, {"p": 1}, 1, (0, 1), (0,))


def test_a_packed_row_raises_t_to_its_highest_contributor():
    b = books(every=4)
    b.settle(admit((0, 1), (1, 1), (2, 1)))
    b.settle(Receipt(rows=rows((0, 0), (2, 0), splits=[0, 2])), rounds=1)
    s = b.snapshot()
    assert (len(s.chunks), s.source, s.cursor) == (3, {"p": 3}, (0, 0))


def test_trailing_boundary_when_t_ends_its_epoch():
    """C1."""
    b = books(every=2)
    b.settle(admit((0, 1), (1, 1)))
    b.settle(Receipt(rows=rows((0, 0), (1, 0))), rounds=1)
    assert b.snapshot().boundaries == (0, 2)


def test_cursor_pins_its_epoch_until_a_later_row_goes_out():
    """P4: the sentinel came out, yet the epoch of the cursor stays until a row of a later epoch is delivered."""
    b = books(every=1)
    b.settle(admit((0, 1), (1, 1)))
    b.settle(Receipt(rows=rows((0, 0)), boundary=1), rounds=1)
    assert (b.snapshot().first, b.chunks_in_flight) == (0, 1)
    b.settle(Receipt(rows=rows((1, 0))), rounds=1)
    assert (b.snapshot().first, b.snapshot().delivered) == (1, 1)


def test_monotone_keeps_one_chunk():
    """P1, P3: a watermark is enough where order is kept."""
    b = LaneBooks(0, None, {"p": 0})
    b.settle(admit((0, 2), (1, 3)))
    b.settle(Receipt(rows=rows((0, 0), (0, 1), (1, 0), (1, 1))), rounds=1)
    s = b.snapshot()
    assert (s.first, len(s.chunks), s.delivered, s.boundaries) == (1, 1, 2, ())


def test_monotone_refuses_reordering():
    """P3."""
    b = LaneBooks(0, None, {"p": 0})
    b.settle(admit((0, 3)))
    with pytest.raises(ContractViolation, match="preserves_cursor_order"):
        b.settle(Receipt(rows=rows((0, 1), (0, 0))))


def test_row_behind_a_later_sentinel_is_refused():
    b = books(every=1)
    b.settle(admit((0, 1), (1, 1)))
    with pytest.raises(ContractViolation, match="later sentinel"):
        b.settle(Receipt(rows=rows((1, 0), (0, 0))))


def test_lost_last_child_is_caught_at_the_sentinel():
    b = books(every=1)
    b.settle(admit((0, 2)))
    with pytest.raises(ContractViolation, match="chunk 0 offset 1 .its last child is missing"):
        b.settle(Receipt(rows=rows((0, 0)), boundary=1))


def test_lost_middle_child_is_caught_at_the_sentinel():
    """P2: the last child says that there were three; one never came out."""
    origin, _ = Origin.of_chunk(0, np.array([0]), 1).repeat(np.array([3]), 0)
    b = books(every=1)
    b.settle(admit((0, 1)))
    with pytest.raises(ContractViolation, match="1 of its children are missing"):
        b.settle(Receipt(rows=origin.take(np.array([0, 2])), boundary=1))


def test_a_row_of_a_later_epoch_proves_the_earlier_ones_done():
    """P4, without the sentinel's receipt."""
    b = books(every=1)
    b.settle(admit((0, 2), (1, 1)))
    b.settle(Receipt(rows=rows((0, 0))))
    with pytest.raises(ContractViolation, match="a row of chunk 1 was delivered"):
        b.settle(Receipt(rows=rows((1, 0))))


@pytest.mark.parametrize(
    ("cursor", "text"), [((0, 0), "finished twice"), ((0, 9), "beyond its chunk"), ((5, 0), "evicted epoch")]
)
def test_invented_records_are_refused(cursor, text):
    b = books(every=2)
    b.settle(admit((0, 2)))
    b.settle(Receipt(rows=rows((0, 0))))
    with pytest.raises(ContractViolation, match=text):
        b.settle(Receipt(closed=[rows(cursor).table]))


def test_epochs_of_which_everything_was_dropped_are_forgotten():
    """P5: also behind a row that waits in a batch, so nothing gathers while a filter drops all there is."""
    b = books(every=2)
    b.settle(admit((0, 1), (1, 1)))
    for chunk in range(2, 400, 2):
        b.settle(admit((chunk, 3), (chunk + 1, 3)))
        b.settle(Receipt(closed=[rows(*[(c, o) for c in (chunk, chunk + 1) for o in range(3)]).table]))
        assert len(b._epochs) == 1
    assert b.evicted_chunks == 398


def test_skipped_samples_count_when_the_cut_passes_them():
    """F4, C9: what was skipped beyond the last delivered sample leaves no trace."""
    b = LaneBooks(0, 4, {"p": 0}, None, max_skipped=1)
    b.settle(admit((0, 4), (1, 4)))
    bad = rows((0, 1), (1, 3)).table
    b.settle(Receipt(closed=[bad], skipped=[bad[CHUNK:LINEAGE]]))
    assert (b.snapshot().skipped, b.skipped_total) == ((), 0)
    b.settle(Receipt(rows=rows((0, 2))))
    assert (b.snapshot().skipped, b.skipped_total) == (((0, 1),), 1)
    again = LaneBooks(0, 4, {"p": 0}, b.snapshot(), max_skipped=1)
    assert again.snapshot().skipped == ((0, 1),)
    again.settle(admit((1, 4)))
    again.settle(Receipt(closed=[rows((1, 3)).table, rows((0, 1)).table], skipped=[rows((1, 3)).table[CHUNK:LINEAGE]]))
    again.settle(admit((2, 1)))
    with pytest.raises(DataError, match="max_skipped"):
        again.settle(Receipt(rows=rows((2, 0))))


def test_restore_keeps_every_number():
    b = books(every=3)
    b.settle(admit((0, 2), (1, 2)))
    b.settle(Receipt(rows=rows((1, 0), (0, 1))), rounds=1)
    s, t = b.snapshot(), LaneBooks(7, 3, {"p": 0}, b.snapshot()).snapshot()
    for name in (
        "first",
        "boundaries",
        "source",
        "delivered",
        "cursor",
        "high_offset",
        "rounds",
        "rows",
        "digest",
        "skipped",
    ):
        assert getattr(s, name) == getattr(t, name), name


def test_a_sentinel_is_checked_without_what_came_after_it():
    b = LaneBooks(7, 1, {"p": 0}, bulk=100)
    b.settle(admit((0, 2), (1, 1)))
    b.settle(Receipt(rows=rows((0, 0)), boundary=1), rounds=1)
    b.settle(Receipt(rows=rows((0, 1))), rounds=1)
    for _ in range(2):  # and the books stay wrong
        with pytest.raises(ContractViolation, match=r"sentinel 1 came out, but .* 1 offsets are open"):
            b.up_to_date()


def test_what_waits_is_settled_when_it_is_much():
    b = LaneBooks(7, 1, {"p": 0}, bulk=2)
    b.settle(admit((0, 1), (1, 1), (2, 1)))
    b.settle(Receipt(rows=rows((0, 0))), rounds=1)
    b.settle(Receipt(rows=rows((0, 0))), rounds=1)
    with pytest.raises(ContractViolation, match="finished twice"):
        b.settle(Receipt(rows=rows((1, 0))), rounds=1)


def test_replay_filter_drops_by_count_and_checks_identity():
    f = ReplayFilter(0, 3, (0, 2))
    assert (f.leading(rows((0, 1), (0, 0))), f.leading(rows((0, 2), (0, 3)))) == (2, 1)
    with pytest.raises(ContractViolation, match="diverged"):
        ReplayFilter(0, 1, (0, 2)).leading(rows((0, 1)))
    with pytest.raises(ContractViolation, match="with 5 rows to go"):
        ReplayFilter(0, 5, (0, 2), top=3).leading(rows((4, 0)))
    with pytest.raises(ContractViolation, match="ended 2 rows before"):
        ReplayFilter(0, 2, (0, 2)).at_end()


# -- every interleaving --------------------------------------------------------------------------------------------
def explore(config, max_crashes=2, limit=200_000):
    """All interleavings with crashes; the number of states."""
    return search(World(config), uninterrupted(config), max_crashes, limit)


SMALL = [
    Config(0, 1, (1, 1), 1, 1, 1),
    Config(1, 1, (2,), 0, 2, 1),
    Config(3, 2, (1, 1), 1, 2, 2),
    Config(5, None, (2, 2), 0, 1, 2),
    Config(8, None, (1, 0, 2), 0, 1, 1),
]
LARGER = [
    Config(0, 1, (2, 1), 1, 1, 1),
    Config(1, 1, (1, 1, 1), 0, 2, 1),
    Config(2, 2, (1, 1, 1), 1, 1, 2),
]


@pytest.mark.parametrize("config", SMALL, ids=str)
def test_every_interleaving(config):
    assert explore(config, limit=60_000) > 10


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("config", LARGER, ids=str)
def test_every_interleaving_of_larger_ones(config):
    assert explore(config) > 1_000


# -- long random runs ----------------------------------------------------------------------------------------------
class Lane(RuleBasedStateMachine):
    """Steps, bursts, checkpoints and crashes in any order; the stream stays exact and a cut has one state."""

    @initialize(seed=st.integers(0, 10**9))
    def start(self, seed):
        self.rng = random.Random(seed)
        self.config = random_config(self.rng)
        self.base, self.position = uninterrupted(self.config), 0
        self.world = World(self.config, books=bulky(self.rng))
        self.saved = states_by_position(self.config)

    def advance(self):
        batch = self.world.do(self.rng.choice(self.world.actions()))
        if batch is not None:
            assert batch == self.base[self.position]
            self.position += 1

    @precondition(lambda self: self.world.actions())
    @rule(n=st.integers(1, 60))
    def burst(self, n):
        for _ in range(n):
            if self.world.actions():
                self.advance()

    @rule()
    def crash(self):
        key = self.world.snapshot_key()
        assert self.saved[self.position] == key  # C9, whatever waits to be settled
        self.world = self.world.crashed()
        assert self.world.snapshot_key() == key  # C3

    def teardown(self):
        if hasattr(self, "world"):
            while self.world.actions():
                self.advance()
            assert self.position == len(self.base)


TestLaneMachine = Lane.TestCase
TestLaneMachine.settings = settings(
    max_examples=200, stateful_step_count=25, deadline=None, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
