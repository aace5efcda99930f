"""How large a demo run is. The parent writes one `Settings` to the work folder; every trainer reads it from there."""

from __future__ import annotations

import dataclasses
import json
import pathlib

__all__ = ["FULL", "QUICK", "Settings", "mesh_shape"]

SETTINGS_FILE = "settings.json"


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Sizes of the run, of its data and of its model.

    `kill_after` is the first step after which the trainer may be killed; it lies strictly between two checkpoints.
    `loss_tolerance` bounds the difference that another number of devices may make to a loss: sums are then taken in
    another order, and float32 addition is not associative. About 2e-6 is usual; the room above is for old versions of
    jaxlib, see `model`. Batches have no tolerance.
    """

    devices: int = 8
    resume_devices: int = 4
    steps: int = 120
    save_every: int = 20
    kill_after: int = 67
    loss_tolerance: float = 0.01

    corpus_bytes: int = 4_000_000
    vocabulary_size: int = 2048
    tokenizer_sample_bytes: int = 600_000
    global_batch_size: int = 16
    sequence_length: int = 128
    canonical_replicas: int = 8
    chunk_size: int = 8
    flush_every_k_chunks: int = 4
    shuffle_rows: int = 32

    width: int = 128
    heads: int = 4
    layers: int = 2
    learning_rate: float = 3e-3

    def __post_init__(self) -> None:
        if not 0 < self.save_every < self.kill_after < self.steps:
            raise ValueError("needed: 0 < save_every < kill_after < steps, so that a checkpoint lies before the kill")
        if self.kill_after % self.save_every == 0:
            raise ValueError("kill_after must not be a step that is saved")

    def write(self, work: pathlib.Path) -> None:
        """Write the settings into the folder `work`."""
        (work / SETTINGS_FILE).write_text(json.dumps(dataclasses.asdict(self), indent=1), encoding="utf-8")

    @classmethod
    def read(cls, work: pathlib.Path) -> Settings:
        """The settings that `write` put into the folder `work`."""
        return cls(**json.loads((work / SETTINGS_FILE).read_text(encoding="utf-8")))


FULL = Settings()
QUICK = Settings(
    devices=4,
    resume_devices=2,
    steps=40,
    save_every=8,
    kill_after=21,
    corpus_bytes=2_000_000,
    tokenizer_sample_bytes=300_000,
    sequence_length=96,
    width=64,
    learning_rate=4e-3,
)


def mesh_shape(devices: int) -> tuple[int, int]:
    """Sizes of the axes (data, model): two model shards wherever the number of devices is even."""
    model = 2 if devices % 2 == 0 else 1
    return devices // model, model
