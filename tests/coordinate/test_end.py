"""The agreed end: searched exhaustively, with the mistakes that the search must notice; and driven over a real store."""

from __future__ import annotations

import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.coordinate.search_end import MISTAKES, TWO, Bad, mutated, search, suite
from zephon_jax.coordinate import end
from zephon_jax.coordinate.end import Fact, Verdict, Watch, join, pack_facts, unpack_facts, verdict


def test_all_stop_after_the_same_step_whatever_happens():
    cases, states = suite(end, big=False)
    assert cases == 24
    assert states > 10_000


@pytest.mark.long
def test_all_stop_after_the_same_step_in_many_more_cases():
    cases, states = suite(end, big=True)
    assert cases == 47
    assert states > 500_000


@pytest.mark.parametrize("name", MISTAKES)
def test_the_mistake_is_noticed(name):
    with pytest.raises(Bad):
        suite(mutated(*MISTAKES[name]), big=False)


def test_wrong_uses_are_noticed():
    with pytest.raises(Bad, match="stopped|stuck|beyond"):  # facts of another stream under the same digest
        search(end, (1, 2), (TWO,), "drop", 1, 1, planted=(Fact(3), Fact(3)))
    with pytest.raises(Bad, match="stuck"):  # facts written more seldom than a process may run ahead
        search(end, (4, 4), (TWO,), "drop", 2, 4, lead=1)


facts = st.tuples(*[st.builds(Fact, st.integers(0, 5), st.booleans())] * 3)


@given(facts, facts, facts)
def test_facts_join_in_any_order_and_more_often(a, b, c):
    assert join(a, b) == join(b, a)
    assert join(join(a, b), c) == join(a, join(b, c))
    assert join(a, a) == a
    assert unpack_facts(pack_facts(a), 3) == a
    assert unpack_facts(pack_facts(a), 2) is None


@given(
    st.lists(st.integers(0, 4), min_size=3, max_size=3), st.data(), st.integers(0, 6), st.sampled_from(["drop", "pad"])
)
def test_two_processes_never_come_to_opposite_answers(supply, data, step, policy):
    """With any two sets of facts that are true."""

    def true_facts():
        return tuple(
            data.draw(st.one_of(st.builds(Fact, st.integers(0, n), st.just(False)), st.just(Fact(n, True))))
            for n in supply
        )

    assert {verdict(true_facts(), step, policy), verdict(true_facts(), step, policy)} != {Verdict.DELIVER, Verdict.STOP}


def test_by_hand():
    watch = Watch.of(2, [0], 2)
    assert verdict(watch.facts, 0, "drop") is Verdict.WAIT
    watch = watch.produced({0: Fact(1)})
    assert not watch.due(Verdict.WAIT, full=False)
    assert watch.due(Verdict.WAIT, full=True)
    watch = watch.produced({0: Fact(2)})
    assert watch.due(Verdict.DELIVER, full=False)
    watch = watch.wrote().learned((Fact(0), Fact(1, True)))
    assert [verdict(watch.facts, t, "drop") for t in range(3)] == [Verdict.DELIVER, Verdict.STOP, Verdict.STOP]
    assert [verdict(watch.facts, t, "pad") for t in range(3)] == [Verdict.DELIVER, Verdict.DELIVER, Verdict.WAIT]


# -- the driver, with threads as processes over a directory -------------------------------------------------------------------
class Lanes:
    """Stands in for an engine: lanes of given lengths."""

    def __init__(self, own: dict[int, int]):
        self.own, self.made, self.ended, self.endless, self.stopped = own, dict.fromkeys(own, 0), {}, False, False

    def produced(self):
        return dict(self.made)

    def rounds(self):
        from zephon_jax.engine.engine import Delivery

        while True:
            for lane, n in self.own.items():
                if self.made[lane] == n:
                    self.ended[lane] = n
                    return
            for lane in self.own:
                self.made[lane] += 1
            yield Delivery([{} for _ in self.own], [])

    def padded_rounds(self):
        from zephon_jax.engine.engine import Delivery

        while True:
            for lane, n in self.own.items():
                if self.made[lane] == n:
                    self.ended[lane] = n
                else:
                    self.made[lane] += 1
            yield Delivery([None if lane in self.ended else {} for lane in self.own], [])


def together(folder, supplies, policy, ahead=4, timeout_s=20.0, fail=None, dead=()):
    from zephon_jax.coordinate.directory import DirectoryStore
    from zephon_jax.emit.agreed import Agreement, agreed
    from zephon_jax.emit.topology import Topology

    lanes = sum(map(len, supplies))
    results: list = [None] * len(supplies)

    def process(i):
        topology = Topology(
            i, len(supplies), tuple(supplies[i]), {lane: (j,) for j, s in enumerate(supplies) for lane in s}
        )
        engine = Lanes(supplies[i])
        agreement = Agreement(DirectoryStore(folder), "end-", topology, lanes, policy, ahead, timeout_s)
        rounds = engine.rounds() if policy == "drop" else engine.padded_rounds()
        n = 0
        try:
            for _ in agreed(engine, rounds, agreement):
                n += 1
                if fail == (i, n):
                    engine.own = None  # type: ignore[assignment]  # the next round raises
            results[i] = n
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=process, args=(i,)) for i in range(len(supplies)) if i not in dead]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize(("policy", "steps"), [("drop", 9), ("pad", 40)])
@pytest.mark.parametrize("ahead", [2, 4, 9])
def test_the_driver_stops_everyone_after_the_same_step(tmp_path, policy, steps, ahead):
    assert together(tmp_path, [{0: 40, 1: 17}, {2: 9}, {3: 23, 4: 24}], policy, ahead) == [steps] * 3


def test_an_error_reaches_the_others_with_its_text(tmp_path):
    from zephon_jax.errors import AggregationFailed

    one, two = together(tmp_path, [{0: 500}, {1: 400}], "drop", fail=(0, 20))
    assert isinstance(one, AttributeError)
    assert isinstance(two, AggregationFailed)
    assert "another process failed: process 0: AttributeError: 'NoneType' object has no attribute" in str(two)


def test_a_process_that_never_says_anything_is_named(tmp_path):
    from zephon_jax.errors import AggregationTimeout

    error = together(tmp_path, [{0: 50}, {1: 50}], "drop", timeout_s=0.3, dead=[1])[0]
    assert isinstance(error, AggregationTimeout)
    assert str(error) == (
        "process 0: lanes [1], produced by processes [1], did not say within 0.3 s whether they reach step 0; those processes "
        "are slower than that, have closed this iterator, or are dead; or they made other iterators: all must make the same, in "
        "the same order"
    )


def test_rows_that_two_processes_make_differently_are_found(tmp_path):
    import numpy as np

    from zephon_jax.coordinate.directory import DirectoryStore
    from zephon_jax.emit.agreed import Agreement, agreed
    from zephon_jax.emit.topology import Topology
    from zephon_jax.engine.engine import Delivery
    from zephon_jax.errors import ContractViolation

    def process(i, values, run="a"):
        topology = Topology(i, 2, (0,), {0: (0, 1)})
        engine = Lanes({0: 9})
        engine.endless = True
        rounds = (Delivery([{"x": np.array(v)}], []) for v in values)
        return agreed(engine, rounds, Agreement(DirectoryStore(tmp_path / run), "end-", topology, 1, "drop", 2, 5.0))

    same = [process(0, [[1], [2], [3]]), process(1, [[1], [2], [4]])]
    for _ in range(2):
        assert [len(next(p).batch) for p in same] == [1, 1]
    assert [len(next(p).batch) for p in same] == [1, 1], "step 3 is not among those that are compared"
    next(process(0, [[7]], "b"))
    other = process(1, [[8]], "b")
    with pytest.raises(
        ContractViolation, match=r"process 1 and process 0 differ in lane 0, which processes \[0, 1\] produce"
    ):
        next(other)
    next(process(0, [[7]], "c"))
    shapes = process(1, [[[1, 2]]], "c")
    with pytest.raises(ContractViolation, match="differ in the fields of a step, their types or shapes"):
        next(shapes)


def test_processes_that_were_built_otherwise_say_what_differs(tmp_path):
    from zephon_jax.coordinate.directory import DirectoryStore
    from zephon_jax.emit.agreed import Agreement, agreed
    from zephon_jax.emit.topology import Topology
    from zephon_jax.errors import AggregationFailed, ConfigurationError

    def process(i, built, endless):
        engine = Lanes({i: 9})
        engine.endless = endless
        topology = Topology(i, 2, (i,), {0: (0,), 1: (1,)})
        agreement = Agreement(DirectoryStore(tmp_path / str(endless)), "end-", topology, 2, "drop", 2, 5.0, built)
        return agreed(engine, engine.rounds(), agreement)

    for endless in (True, False):
        first = process(0, {"plan": {"seed": 0}, "accumulate": None}, endless)
        other = process(1, {"plan": {"seed": 1}, "accumulate": 2}, endless)
        if endless:
            next(first)
        else:  # it would wait for the other's facts
            DirectoryStore(tmp_path / "False").put("end-built", b'{"plan": {"seed": 0}, "accumulate": null}')
        with pytest.raises(
            ConfigurationError, match=r"plan.seed: process 0 has 0, here 1; accumulate: process 0 has None, here 2"
        ):
            next(other)
        with pytest.raises(AggregationFailed, match="process 1: ConfigurationError: process 1 was built otherwise"):
            list(itertools.islice(first, 9))
