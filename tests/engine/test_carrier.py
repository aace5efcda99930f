"""Whether a leg that belongs elsewhere goes there, and what becomes of a bundle of which a worker dies."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from zephon_jax.columns import columns_from_rows
from zephon_jax.engine.carrier import Carrier
from zephon_jax.engine.tasks import StepFailed
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops import Map
from zephon_jax.origin import Origin, no_contributors
from zephon_jax.plan.compile import Step
from zephon_jax.plan.place import Leg
from zephon_jax.plan.shipping import unpacked
from zephon_jax.runners.outcome import Stopped, TaskLost
from zephon_jax.runners.watch import Watch

STEP = Step(Map(lambda record: {"x": record["x"] + 1}, name="add"), 0, -1)
LEG = Leg((STEP,), "remote")


def micro_batch(first, n=2):
    rows = [{"x": first + i} for i in range(n)]
    origin = Origin.of_chunk(0, np.arange(first, first + n), 0)
    return MicroBatch(0, columns_from_rows(rows), origin, no_contributors(0), np.empty((2, 0), np.int32))


class Remote:
    """Multiplies instead, so that it shows who worked; what is in `fatal` kills, and `bad` raises."""

    deaths, ready = 0, True

    def __init__(self, fatal=None, bad=None):
        self.fatal, self.bad, self.calls = fatal, bad, []

    def call(self, key, parts, watch, timeout_s, attempts):
        given = unpacked([bytearray(part) for part in parts])
        firsts = [batch.rows()[0]["x"] for batch in given]
        self.calls.append((firsts, attempts))
        if self.fatal in firsts:
            raise TaskLost("its worker process died")
        done = [(b.with_rows([{"x": 100 * r["x"]} for r in b.rows()]), [(2, 2, 0)]) for b in given]
        if self.bad in firsts:
            error = StepFailed("map(add)", (0, self.bad))
            raise Stopped(done[: firsts.index(self.bad)], error) if firsts.index(self.bad) else error
        return done


def carried(remote, batches, *, patient=False):
    carrier = Carrier({0: "map(add)"}, None, patient=patient)
    carrier.remote, carrier.keys[LEG.steps] = remote, "key"
    done = carrier.through([LEG], Watch(), batches)
    return [[row["x"] for row in batch.rows()] for batch, _ in done.results], done.error


def test_it_goes_elsewhere_if_somebody_is_there():
    assert carried(Remote(), [micro_batch(0), micro_batch(2)]) == ([[0, 100], [200, 300]], None)
    starting = SimpleNamespace(ready=False)
    assert carried(starting, [micro_batch(0), micro_batch(2)], patient=True) == ([[1, 2], [3, 4]], None)
    assert carried(None, [micro_batch(0)], patient=True) == ([[1, 2]], None)
    assert carried(Remote(), [micro_batch(0)], patient=True) == ([[0, 100]], None)


def test_a_bundle_of_which_a_worker_dies_is_tried_one_by_one():
    remote = Remote(fatal=2)
    results, error = carried(remote, [micro_batch(0), micro_batch(2), micro_batch(4)])
    assert results == [[0, 100]]
    assert isinstance(error, StepFailed)
    assert (error.operator, error.cursor) == ("map(add)", (0, 2))
    assert str(error.__cause__) == "its worker process died, in a micro-batch of 2 records that begins here"
    assert remote.calls == [([0, 2, 4], 1), ([0], 3), ([2], 3)]


@pytest.mark.parametrize(("bad", "expected"), [(0, []), (2, [[0, 100]]), (4, [[0, 100], [200, 300]])])
def test_what_came_before_a_failure_comes_out(bad, expected):
    results, error = carried(Remote(bad=bad), [micro_batch(0), micro_batch(2), micro_batch(4)])
    assert results == expected
    assert isinstance(error, StepFailed)
    assert (error.operator, error.cursor) == ("map(add)", (0, bad))
