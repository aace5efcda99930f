"""The first pointers of many work sources as a file, so that an order never changes unnoticed.

    python -m tests.work.golden --write

adds what is missing to `tests/golden/pointers_v1.json`; an entry that exists is left as it is: an order that changes on
purpose needs another `ORDER_VERSION`, and its own file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import Any

from tests.work.reference import data
from zephon_jax.work import MixtureSchedule, StaticMixtureWorkSource

FILE = Path(__file__).parents[1] / "golden" / "pointers_v1.json"
SETS = [data("web", 37, 0, 25, 90, hint=100), data("code", 14, 46), data("books", 8, 3)]
LANES, LANE = 2, 1

Arguments = dict[str, Any]

WEIGHTS: dict[str, Arguments] = {
    "by size": {},
    "fixed": {"mixture": {"web": 0.7, "code": 0.25, "books": 0.05}},
    "steps": {
        "mixture": MixtureSchedule(
            [
                (0, {"web": 1, "code": 1, "books": 0}),
                (17, {"web": 0, "code": 2, "books": 1}),
                (40, {"web": 1, "code": 1, "books": 1}),
            ]
        ),
    },
    "ramp": {
        "mixture": MixtureSchedule(
            [(0, {"web": 1, "code": 0.5, "books": 0}), (50, {"web": 0.1, "code": 0.5, "books": 0.4})], "linear"
        ),
    },
    "tokens": {
        "mixture": {"web": 1, "code": 2, "books": 1},
        "weight_by": "tokens",
        "tokens_per_sample": {"web": 512.5, "code": 300, "books": 4000},
    },
    "ramp of tokens": {
        "mixture": MixtureSchedule(
            [(0, {"web": 1, "code": 0, "books": 1}), (60, {"web": 0.25, "code": 1, "books": 1})], "linear"
        ),
        "weight_by": "tokens",
        "tokens_per_sample": {"web": 512.5, "code": 300, "books": 4000},
    },
}
SHUFFLES: dict[str, Arguments] = {
    "shards": {},
    "file order": {"shuffle_shards": False},
    "within": {"shuffle_within_shard": True},
    "blocks of 4": {"shuffle_block_size": 4},
    "blocks of 4 within": {"shuffle_block_size": 4, "shuffle_within_shard": True},
    "auto": {"shuffle_block_size": "auto"},
    "global": {"shuffle_block_size": "global"},
    "one order": {"shuffle_block_size": "global", "reshuffle_on_repeat": False},
}
POLICIES: dict[str, Arguments] = {
    "one pass": {},
    "two passes": {"stop_after_passes": 2},
    "stop": {"exhausted_policy": "stop"},
    "repeat": {"exhausted_policy": "repeat"},
    "no repeats": {"max_repeats": 0},
    "by name": {
        "stop_after_passes": {"code": 2},
        "exhausted_policy": {"web": "repeat"},
        "max_repeats": {"books": 1},
    },
}


def cases() -> dict[str, Arguments]:
    """Each weighting with each policy, and each shuffle with two seeds."""
    found = {
        f"{weights}, {policy}": {**WEIGHTS[weights], **POLICIES[policy]}
        for weights, policy in itertools.product(WEIGHTS, POLICIES)
    }
    for shuffle, seed in itertools.product(SHUFFLES, (0, 1)):
        found[f"{shuffle}, seed {seed}"] = {
            "seed": seed,
            "exhausted_policy": "repeat",
            **WEIGHTS["fixed"],
            **SHUFFLES[shuffle],
        }
    return found


def first_pointers(arguments: Arguments) -> dict[str, Any]:
    """The end, the first 24 pointers of one of two lanes, and 8 from its draw 400 on, some passes later."""
    source = StaticMixtureWorkSource(SETS, chunk_size=8, **arguments)
    lane = source.clone_for_lane(LANE, LANES)
    pointers: list[str] = []
    for _ in range(3):
        if (chunk := lane.next_chunk()) is not None:
            pointers += shown(chunk)
    later: list[str] = []
    if lane.num_lane_draws is None or lane.num_lane_draws > 400:
        lane.load_state_dict({"position": 400})
        later = shown(lane.next_chunk())
    return {"draws": source.num_draws, "first": " ".join(pointers), "later": " ".join(later)}


def shown(chunk: Any) -> list[str]:
    columns = (chunk.dataset.tolist(), chunk.shard.tolist(), chunk.sample.tolist())
    return [f"{dataset}:{shard}:{sample}" for dataset, shard, sample in zip(*columns, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="add what is missing to the file")
    kept = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    missing = {name: first_pointers(arguments) for name, arguments in cases().items() if name not in kept}
    if parser.parse_args().write and missing:
        FILE.write_text(json.dumps({**kept, **missing}, indent=1) + "\n", encoding="utf-8")
    print(f"{len(kept)} kept, {len(missing)} missing")
    return 0


if __name__ == "__main__":
    sys.exit(main())
