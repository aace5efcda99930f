"""Images, audio and records of mixed leaves: decoded in a map, cropped at random, batched, resumed, put on devices."""

from __future__ import annotations

import io
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import zephon_jax as zj
from zephon_jax.testing import check_resume


def png(n: int) -> bytes:
    image = pytest.importorskip("PIL.Image")
    stored = io.BytesIO()
    pixels = np.arange(20 * (24 + n % 5) * 3, dtype=np.int64).reshape(20, -1, 3) * (n + 1) % 256
    image.fromarray(pixels.astype(np.uint8)).save(stored, "PNG")
    return stored.getvalue()


def decode(record):
    from PIL import Image

    with Image.open(io.BytesIO(record["png"])) as image:
        return {**{k: v for k, v in record.items() if k != "png"}, "image": np.asarray(image)}


def crop(record, rng):
    top, left = rng.integers(5), rng.integers(record["image"].shape[1] - 15)
    return {**record, "image": record["image"][top : top + 16, left : left + 16]}


def records(n=48) -> list[dict[str, Any]]:
    return [
        {
            "png": png(i),
            "label": i % 10,
            "box": [float(i), 1.0, 2.0, 3.0],
            "caption": "x" * [3, 30, 3000][i % 3],
            "ids": list(range(i % 4)),
            "raw": bytes([i]),
        }
        for i in range(n)
    ]


def pipeline(**options):
    work = zj.StaticMixtureWorkSource(
        zj.Dataset.from_source("photos", records()),
        seed=2,
        chunk_size=8,
        shuffle_block_size="global",
        stop_after_passes=2,
    )
    return zj.Pipeline(work).map(decode).random_map(crop).shuffle(6).batch(global_batch_size=8).options(**options)


def test_batches_of_mixed_leaves():
    batch = next(iter(pipeline(executor="inline")))
    assert (batch["image"].shape, batch["image"].dtype) == ((1, 16, 16, 3), np.uint8)
    assert (batch["box"].shape, batch["box"].dtype) == ((1, 4), np.float64)
    assert batch["label"].dtype == np.int64
    assert isinstance(batch["caption"][0], str)
    assert isinstance(batch["raw"][0], bytes)


@pytest.mark.parametrize("workers", [1, 2])
def test_values_of_any_length_arrive_unchanged(workers):
    seen = 0
    by_label = {(int(r["box"][0])): r for r in records()}
    for batch in pipeline(executor="threads", max_workers=workers):
        for caption, box, ids, raw, label in zip(
            *(batch[k] for k in ("caption", "box", "ids", "raw", "label")), strict=True
        ):
            record = by_label[int(box[0])]
            assert (caption, raw, int(label)) == (record["caption"], record["raw"], record["label"])
            assert np.asarray(ids).tolist() == record["ids"]
            seen += 1
    assert seen == 96


def test_crops_are_the_same_after_a_resume_and_differ_between_passes():
    check_resume(pipeline(executor="inline", canonical_replicas=2), batches=10)
    seen: dict[int, list[bytes]] = {}
    for batch in pipeline(executor="inline"):
        for box, image in zip(batch["box"], batch["image"], strict=True):
            seen.setdefault(int(box[0]), []).append(image.tobytes())
    assert {len(images) for images in seen.values()} == {2}
    assert sum(a != b for a, b in seen.values()) > 40


def test_images_reach_the_devices_and_text_stays_on_the_host():
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    with pipeline().to_global(NamedSharding(mesh, PartitionSpec("data"))) as batches:
        batch = next(batches)
        assert (batch["image"].shape, batch["image"].dtype) == ((8, 16, 16, 3), np.uint8)
        assert batch["box"].dtype == np.float32
        assert sorted(batches.host()) == ["caption", "ids", "raw"]


def test_clips_are_bucketed_and_padded():
    soundfile = pytest.importorskip("soundfile")

    def wav(n):
        stored = io.BytesIO()
        soundfile.write(stored, np.sin(np.arange(100 + 13 * (n % 9)) / 7).astype(np.float32), 8000, format="WAV")
        return stored.getvalue()

    def read(record):
        wave, rate = soundfile.read(io.BytesIO(record["wav"]), dtype="float32")
        return {"wave": wave, "rate": rate, "n": len(wave)}

    clips = zj.Dataset.from_source("clips", [{"wav": wav(n)} for n in range(36)])
    p = (
        zj.Pipeline(zj.StaticMixtureWorkSource(clips, chunk_size=4))
        .map(read)
        .bucket_by_length([150, 220], 4, field="wave")
    )
    p = p.batch(4, drop_last=False).pad_rows([150, 220], fields=["wave"]).options(executor="inline")
    total = 0
    for batch in p:
        assert batch["wave"].shape[1] in (150, 220)
        for wave, n in zip(batch["wave"], batch["n"], strict=True):
            assert np.abs(wave[: int(n)] - np.sin(np.arange(n) / 7)).max() < 1e-3
            assert not wave[int(n) :].any()
            total += 1
    assert total == 36
