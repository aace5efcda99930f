"""A synthetic corpus, the same everywhere: `python -m tests.benchmarks.speed.corpus [--root FOLDER] [--small] [--force]`.

    tok_parquet/part-XX.parquet      documents of token ids: list<int32> column `tokens`, in 16 shards
    tok_arecord/part-XX.arrayrecord  the same documents, a record is little-endian int32
    text_jsonl/part-XX.jsonl         a fifth of the documents as words, {"text": ...}
    tokenizer.json                   byte-level BPE of 8,192 entries, trained on the text
    rec_parquet/part-XX.parquet      records: binary `image` of 784 bytes, int32 `label`
    rec_arecord/part-XX.arrayrecord  the same records, a record is 784 bytes and the label
    rec.npy                          the same records, uint8 (n, 788): for the limit
    meta.json                        counts

Lengths are lognormal with a heavy tail, ids Zipf-like. At full size it takes half a minute and half a gigabyte.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import tempfile
from itertools import pairwise
from typing import Any

import numpy as np

SEED, SHARDS, VOCABULARY = 20240607, 16, 32_000
MEAN, SIGMA, SHORTEST, LONGEST = 630.0, 1.1, 8, 16_384
DOCUMENTS, TEXTS, RECORDS = 40_000, 8_000, 200_000
SMALL = {"documents": 320, "texts": 32, "records": 1_600}
ROW, BINS, ROWS, RECORD_BATCH, SHUFFLE = 2048, 16, 8, 256, 8192


def root_folder() -> str:
    """Where the corpus is: BENCH_DATA, or a folder among the temporary ones."""
    return os.environ.get("BENCH_DATA", os.path.join(tempfile.gettempdir(), "bench"))


def shards(root: str, name: str, suffix: str) -> list[str]:
    return [f"{root}/{name}/part-{i:02d}.{suffix}" for i in range(SHARDS)]


def meta(root: str) -> dict[str, Any]:
    """Counts of the corpus there."""
    return json.loads(pathlib.Path(root, "meta.json").read_text())


def pieces(tokens: np.ndarray) -> list[np.ndarray]:
    """A document cut at the row's length."""
    return [tokens[at : at + ROW] for at in range(0, len(tokens), ROW)]


def zipf_ids(rng: np.random.Generator, n: int) -> np.ndarray:
    """Ids from 1 on, the frequent ones first; 0 stays free for padding."""
    p = 1.0 / (np.arange(1, VOCABULARY) + 2.7) ** 1.07
    found = np.searchsorted(np.cumsum(p / p.sum()), rng.random(n), side="right")
    return (found.clip(0, VOCABULARY - 2) + 1).astype(np.int32)


def lengths_of(rng: np.random.Generator, n: int) -> np.ndarray:
    mu = np.log(MEAN) - SIGMA**2 / 2
    return rng.lognormal(mu, SIGMA, n).round().astype(np.int64).clip(SHORTEST, LONGEST)


def words() -> np.ndarray:
    """One pronounceable word for each id; frequent ids get the short ones."""
    syllables = [c + v for c in "b c d f g h k l m n p r s t v w z st tr ch sh pl".split() for v in "aeiou"]
    out = []
    for number in range(VOCABULARY):
        word = ""
        while True:
            word = syllables[number % len(syllables)] + word
            number //= len(syllables)
            if not number:
                break
        out.append(word)
    return np.array(out, dtype=object)


def write_tokens(root: str, ids: np.ndarray, offsets: np.ndarray, *, arrays: bool = True, group: int = 256) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder, other = _empty(root, "tok_parquet"), _empty(root, "tok_arecord") if arrays else None
    cuts = np.linspace(0, len(offsets) - 1, SHARDS + 1).astype(int).tolist()
    for shard, (a, b) in enumerate(pairwise(cuts)):
        flat, starts = ids[offsets[a] : offsets[b]], (offsets[a : b + 1] - offsets[a]).astype(np.int32)
        table = pa.table({"tokens": pa.ListArray.from_arrays(pa.array(starts), pa.array(flat))})
        pq.write_table(
            table, f"{folder}/part-{shard:02d}.parquet", row_group_size=group, compression="none", use_dictionary=False
        )
        if other is not None:
            _write_records(
                f"{other}/part-{shard:02d}.arrayrecord",
                [flat[s:e].tobytes() for s, e in pairwise(starts.tolist())],
            )


def make(root: str, *, documents: int = DOCUMENTS, texts: int = TEXTS, records: int = RECORDS) -> dict[str, Any]:
    """Write everything; what meta.json says."""
    rng = np.random.default_rng(SEED)
    lengths = lengths_of(rng, documents)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = zipf_ids(rng, int(offsets[-1]))
    write_tokens(root, ids, offsets)
    characters, bpe = _write_text(root, ids, offsets, texts)
    _write_images(root, records)
    counts = {
        "docs": documents,
        "tokens": int(offsets[-1]),
        "mean": float(lengths.mean()),
        "over_2048": int((lengths > ROW).sum()),
        "pieces_2048": int((-(-lengths // ROW)).sum()),
        "shards": SHARDS,
        "seed": SEED,
        "text_docs": texts,
        "text_bytes": characters,
        "text_bpe_tokens": bpe,
        "records": records,
    }
    pathlib.Path(root, "meta.json").write_text(json.dumps(counts, indent=1))
    return counts


def _write_text(root: str, ids: np.ndarray, offsets: np.ndarray, n: int) -> tuple[int, int]:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    table, folder = words(), _empty(root, "text_jsonl")
    texts = []
    for i in range(n):
        each = table[ids[offsets[i] : offsets[i + 1]]].tolist()
        for at in range(12, len(each), 13):  # something for the pre-tokenizer to do
            each[at] += "."
        texts.append(" ".join(each))
    for shard in range(SHARDS):
        with open(f"{folder}/part-{shard:02d}.jsonl", "w") as file:
            part = texts[shard * n // SHARDS : (shard + 1) * n // SHARDS]
            file.writelines(json.dumps({"text": text}) + "\n" for text in part)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=8192,
        special_tokens=["<pad>", "<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts[:2000], trainer)
    tokenizer.save(f"{root}/tokenizer.json")
    return sum(map(len, texts)), sum(len(one.ids) for one in tokenizer.encode_batch_fast(texts))


def _write_images(root: str, n: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(SEED + 1)
    rows = rng.integers(0, 256, (n, 788), dtype=np.uint8)
    labels = rng.integers(0, 10, n).astype(np.int32)
    rows[:, 784:] = labels[:, None].view(np.uint8)
    np.save(f"{root}/rec.npy", rows)
    arrays, tables = _empty(root, "rec_arecord"), _empty(root, "rec_parquet")
    for shard in range(SHARDS):
        a, b = shard * n // SHARDS, (shard + 1) * n // SHARDS
        _write_records(f"{arrays}/part-{shard:02d}.arrayrecord", [row.tobytes() for row in rows[a:b]])
        images = pa.array([row[:784].tobytes() for row in rows[a:b]], pa.binary())
        pq.write_table(
            pa.table({"image": images, "label": pa.array(labels[a:b])}),
            f"{tables}/part-{shard:02d}.parquet",
            row_group_size=1024,
            compression="none",
            use_dictionary=False,
        )


def _write_records(path: str, records: list[bytes]) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(path, "group_size:1,uncompressed")  # what Grain recommends for random access
    for record in records:
        writer.write(record)
    writer.close()


def _empty(root: str, name: str) -> str:
    path = os.path.join(root, name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=root_folder())
    parser.add_argument("--small", action="store_true", help="a thousandth, to see that all of it works")
    parser.add_argument("--force", action="store_true", help="also if it is there")
    given = parser.parse_args()
    if given.force or not os.path.exists(os.path.join(given.root, "meta.json")):
        make(given.root, **(SMALL if given.small else {}))
    print(json.dumps(meta(given.root), indent=1))


if __name__ == "__main__":
    main()
