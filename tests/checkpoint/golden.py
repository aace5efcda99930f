"""States of version 1 as files, and the runs that made them.

    python -m tests.checkpoint.golden --write

writes `tests/golden/state_v1_*.zst` and prints the digests that `test_golden.py` holds as literals. A file that exists
is left as it is: what was written once must be read by every later version, or be refused by its version's number.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import zephon_jax as zj
from tests.operators import Wrap
from zephon_jax.checkpoint.codec import encode

FOLDER = Path(__file__).parents[1] / "golden"
NEXT = 8  # batches whose content is recorded


class Run(NamedTuple):
    """A pipeline, whose files if any are put into the folder that it is given; and the way to the cut."""

    pipeline: Callable[[Path], zj.Pipeline]
    walk: Callable[[Any], None]


def letters(text: str) -> list[int]:
    return [ord(c) - 96 for c in text]


def square(record):
    return {"n": record["n"], "square": float(record["n"] ** 2)}


def odd(record):
    return record["n"] % 3 != 1


def text_only(record):
    return {"text": record["text"]}


def samples(n: int) -> list[dict[str, Any]]:
    return [{"text": "abcdefghijklm"[: 1 + i * 5 % 13] * (i % 3), "n": i} for i in range(n)]


def datasets(*sizes: int) -> list[zj.Dataset]:
    return [zj.Dataset.from_source(f"d{k}", samples(n), fingerprint=f"golden {n}") for k, n in enumerate(sizes)]


def torn(folder: Path) -> zj.Dataset:
    """A file some of whose lines are no JSON; under `on_data_error="skip"` they are skipped."""
    lines = [json.dumps(sample) for sample in samples(120)]
    path = folder / "torn.jsonl"
    path.write_bytes("".join("{\n" if i % 7 == 3 else f"{line}\n" for i, line in enumerate(lines)).encode())
    return zj.Dataset.from_path("torn", path)


def monotone(_: Path) -> zj.Pipeline:
    """No accumulator: sequential reading, three lanes, in the middle of a round."""
    work = zj.StaticMixtureWorkSource(datasets(150), chunk_size=16, shuffle_shards=False)
    p = zj.Pipeline(work).map(square, name="square", version=1).filter(odd, name="odd", version=1).batch(4)
    return p.options(canonical_replicas=3)


def lengths(_: Path) -> zj.Pipeline:
    """A mixture in blocks, packed and shuffled: records with their lengths and children, two lanes."""
    work = zj.StaticMixtureWorkSource(
        datasets(90, 40), {"d0": 3, "d1": 1}, seed=7, chunk_size=12, shuffle_block_size=4, exhausted_policy="repeat"
    )
    p = zj.Pipeline(work).filter(odd, name="odd", version=1).map(text_only, name="text_only", version=1)
    p = (
        p.tokenize(letters, name="letters", version=1)
        .split(9)
        .pack(24, num_bins=4)
        .shuffle(6, seed=3)
        .batch(2)
        .lm_targets()
    )
    return p.options(canonical_replicas=2, flush_every_k_chunks=3)


def skipped(folder: Path) -> zj.Pipeline:
    """Unreadable samples skipped, rows passed over, records without lengths."""
    work = zj.StaticMixtureWorkSource(torn(folder), seed=1, chunk_size=10, shuffle_within_shard=True)
    p = zj.Pipeline(work).map(square, name="square", version=1).shuffle(5, seed=2).batch(3)
    return p.options(canonical_replicas=2, flush_every_k_chunks=4, on_data_error="skip")


def wrapped(_: Path) -> zj.Pipeline:
    """An accumulator of one's own that needs the payloads: nothing is kept of the records. One lane, at the very end."""
    work = zj.StaticMixtureWorkSource(datasets(60), chunk_size=8, shuffle_block_size="global", stop_after_passes=1)
    p = zj.Pipeline(work).tokenize(letters, name="letters", version=1).apply(Wrap(16))
    return p.batch(1, drop_last=False).options(flush_every_k_chunks=3)


def several(steps: int) -> Callable[[Any], None]:
    def walk(it: Any) -> None:
        for _ in range(steps):
            next(it)

    return walk


def passing_over(it: Any) -> None:
    several(4)(it)
    it.skip(3)
    several(3)(it)
    it.skip(1)
    several(1)(it)


def to_the_end(it: Any) -> None:
    for _ in it:
        pass


RUNS = {
    "monotone": Run(monotone, several(7)),
    "lengths": Run(lengths, several(9)),
    "skipped": Run(skipped, passing_over),
    "end": Run(wrapped, to_the_end),
    "wrapped": Run(wrapped, several(20)),
}


def built(name: str, folder: Path) -> zj.Pipeline:
    """The pipeline of that run."""
    return RUNS[name].pipeline(folder).options(executor="inline")


def at_the_cut(name: str, folder: Path) -> dict[str, Any]:
    """The state of that run at its cut."""
    with iter(built(name, folder)) as it:
        RUNS[name].walk(it)
        return it.checkpoint()


def continued(it: Any) -> str:
    """A digest of the next batches, every field of them, and of the fingerprint that the iterator has then."""
    digest = hashlib.blake2b(digest_size=16)
    for _, batch in zip(range(NEXT), it, strict=False):
        for field in sorted(batch):
            array = np.ascontiguousarray(batch[field])
            digest.update(f"{field} {array.dtype.str} {array.shape}\n".encode() + array.tobytes())
    digest.update(it.fingerprint().encode())
    return digest.hexdigest()


def path_of(name: str) -> Path:
    """The file of that state."""
    return FOLDER / f"state_v1_{name}.zst"


def write() -> None:
    """The files that are missing; and, for all, the digest of what follows."""
    FOLDER.mkdir(exist_ok=True)
    for name in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            state = at_the_cut(name, Path(folder))
            if not path_of(name).exists():
                path_of(name).write_bytes(encode(state))
            with iter(built(name, Path(folder))) as it:
                it.restore(state)
                print(f'    "{name}": "{continued(it)}",  # {path_of(name).stat().st_size} bytes')


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.checkpoint.golden", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--write", action="store_true", required=True, help="write the files that are missing")
    parser.parse_args(arguments)
    write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
