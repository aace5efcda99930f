"""Cases 20 to 24 of the list: passes, files and lanes, empty and missing components, through whole pipelines."""

from __future__ import annotations

import json

import pytest

import zephon_jax as zj

NAMES = ("first", "middle", "last")


def values(pipeline, field="value"):
    with iter(pipeline) as it:
        return [int(record[field]) for record in it]


def test_case_20_three_passes_with_two_workers_are_three_orders_and_the_same_again():
    def run():
        work = zj.StaticMixtureWorkSource(
            zj.Dataset.from_source("r", range(40)), shuffle_block_size="global", stop_after_passes=3, chunk_size=8
        )
        return values(zj.Pipeline(work).options(max_workers=2, micro_batch_records=3))

    drawn = run()
    passes = [tuple(drawn[i : i + 40]) for i in (0, 40, 80)]
    assert len(set(passes)) == 3
    assert [sorted(one) for one in passes] == [list(range(40))] * 3
    assert run() == drawn


def written(folder, *counts):
    at = 0
    for number, count in enumerate(counts):
        lines = [json.dumps({"n": n}) for n in range(at, at + count)]
        (folder / f"{number}.jsonl").write_text("\n".join(lines), encoding="utf-8")
        at += count
    return zj.Dataset.from_path("files", folder)


def test_case_22_two_files_for_eight_lanes_give_each_lane_work(tmp_path):
    work = zj.StaticMixtureWorkSource(written(tmp_path, 60, 20))
    pipeline = zj.Pipeline(work).options(canonical_replicas=8, executor="inline")
    found = []
    for group in range(4):  # four groups, as on four processes
        own = values(pipeline.options(dp_degree=4, dp_group_id=group), "n")
        assert len(own) == 20
        found += own
    assert sorted(found) == list(range(80))


def test_case_22_more_lanes_than_samples_are_refused_at_build(tmp_path):
    pipeline = zj.Pipeline(zj.StaticMixtureWorkSource(written(tmp_path, 3, 2))).options(canonical_replicas=8)
    with pytest.raises(zj.ConfigurationError, match=r"3 lanes would have no work. Use at most canonical_replicas=5"):
        iter(pipeline)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("policy", [None, "repeat"])
def test_case_23_a_component_that_a_filter_empties_is_counted_and_the_others_go_on(place, policy):
    sets = [zj.Dataset.from_source(name, [{"n": k}] * 30) for k, name in enumerate(NAMES)]
    work = zj.StaticMixtureWorkSource(sets, dict.fromkeys(NAMES, 1), exhausted_policy=policy, chunk_size=6)
    pipeline = zj.Pipeline(work).filter(lambda r: int(r["n"]) != place, name="not_it").shuffle(4)
    with iter(pipeline.options(executor="inline")) as it:
        seen = [int(next(it)["n"]) for _ in range(50)]
        counts = it.stats().operators["filter(not_it)"]
    assert set(seen) == {0, 1, 2} - {place}
    assert counts.finished == counts.records_in - counts.records_out > 20


@pytest.mark.parametrize("place", range(3))
def test_case_23_with_weights_by_tokens_a_component_without_any_is_named(place):
    sets = [zj.Dataset.from_source(name, [{"tokens": [1] * 9, "n": k}] * 30) for k, name in enumerate(NAMES)]
    work = zj.StaticMixtureWorkSource(sets, dict.fromkeys(NAMES, 1), weight_by="tokens", exhausted_policy="repeat")
    pipeline = zj.Pipeline(work).filter(lambda r: int(r["n"]) != place, name="not_it").batch(2)
    with (
        iter(pipeline) as it,
        pytest.raises(zj.ConfigurationError, match=rf"samples of '{NAMES[place]}' \(30 samples\)\. "),
    ):
        next(it)


def test_case_24_a_missing_component_fails_at_build_and_is_never_skipped(tmp_path):
    written(tmp_path, 5)
    with pytest.raises(zj.ConfigurationError, match=r"gone\.jsonl"):
        zj.Dataset.from_path("code", tmp_path / "gone.jsonl")


def test_case_24_a_component_that_goes_away_ends_the_stream_also_where_broken_data_is_skipped(tmp_path):
    (tmp_path / "web").mkdir()
    (tmp_path / "code").mkdir()
    sets = [written(tmp_path / "web", 30), written(tmp_path / "code", 30).rename("code")]
    work = zj.StaticMixtureWorkSource(sets, {"files": 1, "code": 1}, chunk_size=4)
    (tmp_path / "code" / "0.jsonl").unlink()
    pipeline = zj.Pipeline(work).batch(2).options(executor="inline", on_data_error="skip")
    with iter(pipeline) as it, pytest.raises(zj.DataError, match=r"code.0\.jsonl"):
        next(it)
