"""Text that every machine has: the Python standard library's own source files, as two datasets of JSONL shards.

A document is a stretch of a source file from one top-level definition to the next. `modules` holds the files directly
in the library's folder, `packages` those in folders below it. The selection depends on the files alone, so that two
runs on one installation train on the same bytes.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import sysconfig
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from zephon_jax.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["Corpus", "Document", "documents_of", "source_files", "train_tokenizer", "write_corpus"]

DATASETS = ("modules", "packages")
TOKENIZER_FILE = "tokenizer.json"
END_OF_TEXT = 0  # the id of the only special token

SKIPPED_FOLDERS = frozenset(
    """__pycache__ _bundled dist-packages distutils encodings ensurepip idlelib lib-dynload lib2to3 pydoc_data
    site-packages test tests turtledemo""".split()
)
LARGEST_FILE_BYTES = 130_000  # larger ones are tables, or generated
NUM_SHARDS = 4

# A definition at the left margin starts a document, unless a decorator just above it already has.
_DEFINITION = re.compile(r"^(?:@|def |async def |class )")


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """One stretch of one source file; `path` is relative to the library's folder and ends in `:line`, from 1."""

    path: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Corpus:
    """What was written: sizes over both datasets, and a sample of the text for the tokenizer."""

    files: int
    documents: int
    text_bytes: int
    sample: tuple[str, ...]


def source_files(library: pathlib.Path | None = None) -> list[pathlib.Path]:
    """The library's source files, sorted by name, without tests, tables and generated files."""
    root = library or pathlib.Path(sysconfig.get_path("stdlib"))
    found: list[pathlib.Path] = []
    for path in root.rglob("*.py"):
        folders = path.relative_to(root).parts[:-1]
        if not SKIPPED_FOLDERS.intersection(folders) and not any(name.startswith("config-") for name in folders):
            found.append(path)
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def documents_of(name: str, source: str) -> Iterator[Document]:
    """Cut one file before every top-level definition; the pieces joined are the file."""
    lines = source.splitlines(keepends=True)
    start = 0
    for i, line in enumerate(lines):
        if _DEFINITION.match(line) and i > start and not lines[i - 1].startswith("@"):
            yield Document(f"{name}:{start + 1}", "".join(lines[start:i]))
            start = i
    if start < len(lines):
        yield Document(f"{name}:{start + 1}", "".join(lines[start:]))


def write_corpus(work: pathlib.Path, *, total_bytes: int, sample_bytes: int) -> Corpus:
    """Write both datasets as `DATASET-SHARD.jsonl` into `work`: one record `{"text", "path"}` per document.

    Each dataset gets about half of `total_bytes`, less if the library has less; files that cannot be read or are not
    UTF-8 are passed over. Every n-th document goes into the sample, up to about `sample_bytes`.
    """
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    chosen: dict[str, list[Document]] = {name: [] for name in DATASETS}
    size = dict.fromkeys(DATASETS, 0)
    files = 0
    for path in source_files(root):
        name = path.relative_to(root).as_posix()
        dataset = "packages" if "/" in name else "modules"
        if size[dataset] >= total_bytes // 2 or (source := _read(path)) is None:
            continue
        files += 1
        size[dataset] += len(source.encode())
        chosen[dataset].extend(documents_of(name, source))
    for dataset, documents in chosen.items():
        if not documents:
            raise DataError(
                f"no source files for {dataset!r} below {root}, needed are the standard library's own: they come with"
                " most Pythons, and the demo can run on any of those",
                path=str(root),
            )
        _write_shards(work, dataset, documents)
    everything = [document.text for name in DATASETS for document in chosen[name]]
    total = sum(size.values())
    stride = max(1, total // sample_bytes)
    return Corpus(files, len(everything), total, tuple(everything[::stride]))


def _read(path: pathlib.Path) -> str | None:
    """The file's text, or None if it is too large or cannot be read."""
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _write_shards(work: pathlib.Path, dataset: str, documents: Sequence[Document]) -> None:
    per_shard = -(-len(documents) // NUM_SHARDS)
    for shard in range(NUM_SHARDS):
        with (work / f"{dataset}-{shard}.jsonl").open("w", encoding="utf-8", newline="\n") as file:
            for document in documents[shard * per_shard : (shard + 1) * per_shard]:
                file.write(json.dumps({"text": document.text, "path": document.path}) + "\n")


def train_tokenizer(sample: Sequence[str], *, vocabulary_size: int) -> Tokenizer:
    """A byte-level BPE, trained in well under a second on a few hundred kilobytes; id `END_OF_TEXT` is `<eos>`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sample, trainer)
    return tokenizer
