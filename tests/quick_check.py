"""A run of a few seconds that a seeded mistake in the engine must fail: `python -m tests.quick_check`.

Fixed pipelines against the plain interpreter with resumes from every cut, the interleavings of a small lane model, and
the C9 comparison of checkpoints between settings. No test runner and no jax, so that it starts fast.
"""

from __future__ import annotations

import random
import sys
import warnings

import tests.engine.test_lane as lane_cases
from tests.engine.test_lane import SMALL, explore
from tests.engine.toy import World, bulky, random_config, states_by_position, uninterrupted
from tests.pipelines import random_case
from tests.test_oracle import check_every_cut, drain
from zephon_jax.checkpoint.codec import encode

CASES = (104, 105, 203, 303, 304, 1001, 1007, 1000, 1012)


def lane_model() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        config = random_config(rng)
        base, saved, position = uninterrupted(config), states_by_position(config), 0
        world = World(config, books=bulky(rng))
        while actions := world.actions():
            if rng.random() < 0.02:
                assert saved[position] == world.snapshot_key()
                world = world.crashed()
                continue
            batch = world.do(rng.choice(actions))
            if batch is not None:
                assert batch == base[position]
                position += 1
            assert len(world.books._epochs) <= 2 * len(config.sizes)
        assert position == len(base)
    explore(SMALL[1])


def lane_table() -> None:
    for name, case in vars(lane_cases).items():
        if name.startswith("test_") and case.__code__.co_argcount == 0:
            case()


def same_states() -> None:
    for seed in (41, 44):
        case = random_case(seed)
        runs = [
            iter(case.pipeline(executor=e, micro_batch_records=n))
            for e, n in (("inline", 1), ("inline", 128), ("threads", 5))
        ]
        for _ in range(40):
            assert len({encode(it.checkpoint()) for it in runs}) == 1
            if [drain(it, 1) for it in runs][0] == []:
                break
        for it in runs:
            it.close()


def main() -> int:
    warnings.simplefilter("ignore")
    lane_table()
    lane_model()
    same_states()
    for seed in CASES:
        check_every_cut(random_case(seed), seed)
    print("quick check: all equal")
    return 0


if __name__ == "__main__":
    sys.exit(main())
