"""Cases from the field on packing, mixtures and passes, as pipelines. The numbers are those of the project's list."""

from __future__ import annotations

import numpy as np
import pytest

import zephon_jax as zj
from zephon_jax.testing import check_resume


def pipeline_of(docs, **options):
    given = {"shuffle_shards": False, "chunk_size": 8, **options}
    return zj.Pipeline(zj.StaticMixtureWorkSource(zj.Dataset.from_source("docs", docs), **given)).options(
        executor="inline"
    )


# -- 13 ----------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("algorithm", ["first_fit", "best_fit", "wrap", "best_fit_wrap"])
def test_case_13_a_hundred_documents_of_one_token(algorithm):
    pipeline = pipeline_of([{"tokens": [i + 1]} for i in range(100)]).pack(64, algorithm=algorithm, max_segments=8)
    rows = [r for b in pipeline.batch(1) for r in zip(b["tokens"], b["segment_ids"], strict=True)]
    assert max(int(segments.max()) for _, segments in rows) <= 8
    assert sorted(int(t) for tokens, _ in rows for t in tokens if t) == list(range(1, 101))


# -- 14 ----------------------------------------------------------------------------------------------------------------------
OVERLONG = [{"tokens": [1] * (17 + i % 5)} for i in range(100)]


@pytest.mark.parametrize(
    ("on_overlong", "tokens", "figure"),
    [
        ("split", sum(len(d["tokens"]) for d in OVERLONG), None),
        ("truncate", 800, ("truncated", 100)),
        ("drop", 0, ("overlong_dropped", 100)),
    ],
)
@pytest.mark.parametrize("algorithm", ["first_fit", "best_fit", "wrap", "best_fit_wrap"])
def test_case_14_only_overlong_documents(algorithm, on_overlong, tokens, figure):
    pipeline = pipeline_of(OVERLONG).pack(8, algorithm=algorithm, on_overlong=on_overlong).batch(1)
    with iter(pipeline) as batches:
        if on_overlong == "drop":
            pipeline = (
                pipeline_of([*OVERLONG, {"tokens": [5]}]).pack(8, algorithm=algorithm, on_overlong="drop").batch(1)
            )
            with iter(pipeline) as batches:
                assert [b["tokens"][0].tolist() for b in batches] == [[5] + [0] * 7]
                figures = batches.stats().operators["pack(8)"].figures
        else:
            rows = [b["segment_ids"][0] for b in batches]
            assert all(row.any() for row in rows), "a row of padding only"
            assert sum(int((row > 0).sum()) for row in rows) == tokens
            figures = batches.stats().operators["pack(8)"].figures
    if figure is not None:
        assert figures[figure[0]] == figure[1]


def test_case_14_an_error_names_document_and_ways_out():
    with pytest.raises(
        zj.DataError, match=r"pack\(8\): a record has 17 tokens; split it, or pass on_overlong=.*sample 0"
    ):
        next(iter(pipeline_of(OVERLONG).pack(8, on_overlong="error").batch(1)))


# -- 15 ----------------------------------------------------------------------------------------------------------------------
def test_case_15_documents_of_next_to_nothing():
    def split_words(text):
        return [ord(c) for c in text if c != " "]

    docs = [{"text": t} for t in ("", " ", "a", "")]
    bare = pipeline_of(docs).tokenize(split_words).pack(4).batch(1)
    with iter(bare) as batches:
        assert [b["tokens"][0].tolist() for b in batches] == [[97, 0, 0, 0]]
        assert batches.stats().operators["pack(4)"].figures["empty"] == 3
    ends = pipeline_of(docs).tokenize(split_words, add_bos=1, add_eos=2).pack(9, num_bins=1).batch(1).lm_targets()
    with iter(ends) as batches:  # kept by policy: BOS and EOS are two tokens
        (batch,) = batches
    assert batch["inputs"][0].tolist() == [1, 2, 1, 2, 1, 97, 2, 1]
    assert batch["segment_ids"][0].tolist() == [1, 1, 2, 2, 3, 3, 3, 4]
    assert batch["loss_weights"][0].tolist() == [1, 0, 1, 0, 1, 1, 0, 1]


# -- 17 ----------------------------------------------------------------------------------------------------------------------
def test_case_17_rows_that_train_nothing_are_counted():
    docs = [{"tokens": [1]}] * 5 + [{"tokens": [1, 2, 3]}]
    pipeline = pipeline_of(docs).pack(3, max_segments=1, num_bins=1).batch(1).lm_targets()
    with iter(pipeline) as batches:
        weights = [float(b["loss_weights"].sum()) for b in batches]
        assert weights == [0, 0, 0, 0, 0, 2]
        assert batches.stats().operators["lm_targets(plain)"].figures == {"rows_without_loss": 5}


# -- 18 ----------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("num_bins", [8, 64, 4096])
def test_case_18_first_fit_is_exactly_first_fit(num_bins):
    rng = np.random.default_rng(num_bins)
    lengths = np.clip(rng.lognormal(2, 1, 2500).astype(int), 1, 64).tolist()
    pipeline = pipeline_of([{"tokens": [i] * n} for i, n in enumerate(lengths, 1)], chunk_size=512)
    pipeline = pipeline.pack(64, num_bins=num_bins).batch(1).options(flush_every_k_chunks=100)
    bins, rows = [], []
    for i, n in enumerate(lengths, 1):
        fit = next((b for b in bins if sum(m for _, m in b) + n <= 64), None)
        if fit is None and len(bins) == num_bins:
            full = max(range(num_bins), key=lambda b: sum(m for _, m in bins[b]))
            rows.append(bins.pop(full))
        bins.append([(i, n)]) if fit is None else fit.append((i, n))
    want = [[i for i, n in row for _ in range(n)] for row in rows + bins]
    got = [b["tokens"][0][b["segment_ids"][0] > 0].tolist() for b in pipeline]
    assert got == want


# -- 19 and 20 ---------------------------------------------------------------------------------------------------------------
def test_case_20_three_passes_in_three_orders_twice():
    def orders(workers):
        work = zj.StaticMixtureWorkSource(
            zj.Dataset.from_source("n", range(50)),
            stop_after_passes=3,
            shuffle_block_size="global",
            seed=4,
            chunk_size=7,
        )
        values = [int(r["value"]) for r in zj.Pipeline(work).options(executor="threads", max_workers=workers)]
        return [tuple(values[at : at + 50]) for at in (0, 50, 100)]

    first = orders(2)
    assert [sorted(order) for order in first] == [list(range(50))] * 3
    assert len(set(first)) == 3
    assert orders(2) == first == orders(1)


# -- 30 ----------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_case_30_texts_of_very_different_lengths_in_one_batch(executor):
    texts = ["abc", "d" * 30, "é" * 3000]
    pipeline = pipeline_of([{"text": t, "n": i} for i, t in enumerate(texts * 20)]).map(lambda r: r, name="same")
    pipeline = pipeline.shuffle(7).batch(6).options(executor=executor, max_workers=2)
    seen = [(int(n), t) for b in pipeline for n, t in zip(b["n"], b["text"], strict=True)]
    assert sorted(seen) == sorted((i, t) for i, t in enumerate(texts * 20))
    check_resume(pipeline, batches=5)
