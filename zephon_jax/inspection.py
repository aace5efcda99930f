"""What a saved state holds, how two differ, and which documents come next: `zephon-jax inspect`.

Reads the file of a state, the folder of an Orbax item, or an Orbax step's folder, without Orbax and without jax. The same
as text, in a notebook, and as one HTML page.
"""

from __future__ import annotations

import argparse
import functools
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zephon_jax.checkpoint.codec import decode, encode, state_from_plain
from zephon_jax.checkpoint.schema import LaneSnapshot, PipelineState
from zephon_jax.display.page import page
from zephon_jax.display.saved import Saved, SavedLane, compared_html, documents_html, saved_html
from zephon_jax.display.timeline import Timeline
from zephon_jax.emit.timeline import timeline_of_snapshots
from zephon_jax.engine.fingerprint import combine, to_hex
from zephon_jax.errors import CheckpointMismatch, ConfigurationError, ZephonError
from zephon_jax.named import load_pipeline
from zephon_jax.pipeline import Pipeline
from zephon_jax.plan.identity import plan_differences
from zephon_jax.work.quota import Quota

__all__ = [
    "Inspection",
    "add_arguments",
    "describe",
    "describe_difference",
    "inspect",
    "next_documents",
    "read_state",
    "run_from",
]


def read_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The state in this file, Orbax item or Orbax step, as `checkpoint()` gave it."""
    where = pathlib.Path(path)
    if where.is_file():
        return decode(where.read_bytes())
    if not where.is_dir():
        raise CheckpointMismatch(f"{where}: no such file or folder")
    found = sorted(where.glob("lanes_*_of_*.zst")) or sorted(where.glob("*/lanes_*_of_*.zst"))
    if len(found) == 1:
        return decode(found[0].read_bytes())
    if len({path.parent for path in found}) == 1:  # of several processes
        from etils import epath

        from zephon_jax.checkpoint.item import read_item

        return read_item(epath.Path(found[0].parent))
    if not found:
        steps = sorted((p.name for p in where.iterdir() if p.is_dir() and p.name.isdigit()), key=int)
        hint = f"; name a step's folder, there are {steps[-8:]}" if steps else ""
        raise CheckpointMismatch(f"{where} holds no pipeline state{hint}")
    raise CheckpointMismatch(f"{where} holds several pipeline states: {[str(p) for p in found]}; name one")


@dataclass(frozen=True, eq=False)
class Inspection:
    """A saved state to look at. `str()` gives text; a notebook shows tables and every lane's timeline.

    `state` is what `checkpoint()` returned, and `name` where it came from.
    """

    name: str
    state: Mapping[str, Any]

    def __str__(self) -> str:
        return describe(self.state)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        return saved_html(self._saved)

    @functools.cached_property
    def _parsed(self) -> PipelineState:
        return state_from_plain(self.state)

    @functools.cached_property
    def _saved(self) -> Saved:
        return _saved(self.name, self.state, self._parsed)

    def timeline(self) -> Timeline:
        """The chunks of every lane: forgotten, and in flight, which a resume replays."""
        return self._saved.timeline

    def difference(self, other: Inspection) -> str:
        """How the other differs from it, in words."""
        return describe_difference(self.state, other.state)

    def page(self, *, other: Inspection | None = None, documents: Iterator[str] | None = None) -> str:
        """One HTML page that needs no other file; with `other` both beside each other, with `documents` these lines too."""
        title = f"Pipeline state {self.name}" if other is None else f"{self.name} and {other.name}"
        if other is None:
            body = saved_html(self._saved)
        else:
            body = compared_html(self._saved, other._saved, self.difference(other).splitlines())
        if documents is not None:
            body += documents_html("what comes next", documents)
        return page(title, body)


def inspect(state: str | os.PathLike[str] | Mapping[str, Any]) -> Inspection:
    """A saved state to look at: a file, an Orbax item's or step's folder, or what `checkpoint()` returned.

    Raises:
        CheckpointMismatch: There is no state, or it is broken.
        ConfigurationError: It is none of these.
    """
    if not isinstance(state, (str, os.PathLike, Mapping)):
        raise ConfigurationError(f"inspect needs a path, or what checkpoint() returned, got {type(state).__name__}")
    plain = state if isinstance(state, Mapping) else read_state(state)
    found = Inspection("in memory" if isinstance(state, Mapping) else os.fspath(state), plain)
    _ = found._parsed  # pyright: ignore[reportPrivateUsage]  - what is broken is refused here, not when it is shown
    return found


def _every(state: PipelineState) -> int | None:
    """Chunks in a flush epoch; None for a pipeline without flushes, whose plan says 0."""
    every = state.plan.get("flush_every_k_chunks")
    return every if isinstance(every, int) and every > 0 else None


def _saved(name: str, plain: Mapping[str, Any], state: PipelineState) -> Saved:
    facts = [
        ("size", f"{len(encode(plain)):,} bytes, format version {plain['version']}"),
        ("lanes", f"{len(state.lanes)} of {state.lanes_total}"),
        ("fingerprint", combine({lane: s.digest for lane, s in state.lanes.items()})),
        ("rows", f"{sum(s.rows for s in state.lanes.values()):,}"),
        ("chunks in flight", f"{sum(len(s.chunks) for s in state.lanes.values()):,}"),
    ]
    return Saved(
        title=name,
        facts=tuple(facts),
        datasets=tuple((line.partition(": ")[0], line.partition(": ")[2]) for line in _datasets(state)),
        plan=tuple(_flat(state.plan)),
        lanes=tuple(
            SavedLane(part["lane"], dict(_lane_values(state.lanes[part["lane"]], len(encode(part)))))
            for part in plain["lanes"]
        ),
        timeline=timeline_of_snapshots(name, state.lanes.values(), _every(state)),
    )


def _flat(plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The plan, a value a line: operators by number, the work source by parameter."""
    for name, value in plan.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{key}", str(part)) for key, part in value.items())
        elif name == "operators":
            for i, operator in enumerate(value):
                what = operator.get("op") or operator.get("class")
                rest = ", ".join(f"{key}={part!r}" for key, part in operator.items() if key not in ("op", "class"))
                yield f"operator {i}", f"{what}: {rest}"
        else:
            yield name, str(value)


def _lane_values(s: LaneSnapshot, size: int) -> Iterator[tuple[str, str]]:
    yield "rows", f"{s.rows:,}"
    yield "rounds", f"{s.rounds:,}"
    yield "chunks in flight", f"{s.first} to {s.next_chunk - 1}" if s.chunks else "none"
    yield "samples in flight", f"{sum(map(len, s.chunks)):,}"
    yield "rows dropped in a replay", f"{s.delivered:,}"
    yield "last row", "" if s.cursor is None else str(s.cursor)
    yield "sentinels", ", ".join(map(str, s.boundaries))
    yield "records known", "" if s.known is None else f"{s.known.shape[1]:,}"
    yield "the source continues from", str(dict(s.source))
    yield "skipped", f"{s.skipped_total:,}" if s.skipped_total else ""
    yield "passed over", ", ".join(f"{a} to {b - 1}" for a, b in s.passed_over)
    yield "bytes, packed alone", f"{size:,}"
    yield "digest", to_hex(s.digest)


# -- what it holds -------------------------------------------------------------------------------------------------
def describe(plain: Mapping[str, Any]) -> str:
    """Several lines: plan, datasets with their positions, and every lane."""
    state = state_from_plain(plain)
    operators = [str(op.get("op") or op.get("class")) for op in state.plan.get("operators", [])]
    lines = [
        f"pipeline state, format version {plain['version']}, {len(encode(plain)):,} bytes",
        f"lanes: {len(state.lanes)} of {state.lanes_total}",
        f"operators: {' -> '.join(operators) or 'none'}",
        f"flush every {state.plan.get('flush_every_k_chunks')} chunks; on broken data: {state.plan.get('on_data_error')}",
        f"fingerprint: {combine({lane: s.digest for lane, s in state.lanes.items()})}",
        "datasets:",
        *(f"  {line}" for line in _datasets(state)),
        "lanes:",
    ]
    for lane in sorted(state.lanes):
        lines += [f"  {line}" for line in _lane(state.lanes[lane])]
    return "\n".join(lines)


def _datasets(state: PipelineState) -> Iterator[str]:
    work = state.plan.get("work", {})
    drawn = _drawn(state, work)
    for i, dataset in enumerate(state.datasets):
        position = ""
        if drawn is not None and dataset.num_samples:
            passes, rest = divmod(drawn[i], dataset.num_samples)
            share = rest / dataset.num_samples
            position = f", about {passes} passes and {share:.1%} drawn for the chunks kept and before"
        yield f"{dataset.name}: {dataset.num_samples:,} samples, fingerprint {dataset.fingerprint}{position}"


def _drawn(state: PipelineState, work: Mapping[str, Any]) -> list[int] | None:
    """Samples drawn of each dataset: of all lanes' positions together, which are known for a static mixture."""
    if work.get("class") != "StaticMixtureWorkSource" or len(state.lanes) != state.lanes_total or "max_repeats" in work:
        return None  # also where weights change on the way
    try:
        return Quota(work["weights"]).counts(sum(int(s.source["position"]) for s in state.lanes.values()))
    except (KeyError, TypeError, ValueError):  # the plan is not checked before it is compared with a pipeline's
        return None


def _lane(s: LaneSnapshot) -> Iterator[str]:
    yield f"lane {s.lane}: {s.rows:,} rows in {s.rounds:,} rounds, digest {to_hex(s.digest)}"
    if not s.chunks:
        yield "  nothing delivered yet; no chunk is replayed"
    else:
        pointers = sum(map(len, s.chunks))
        yield (
            f"  chunks {s.first} to {s.next_chunk - 1} in flight ({pointers:,} samples); {s.delivered:,} of their rows "
            f"delivered, the last one {s.cursor}"
        )
        known = "" if s.known is None else f"; replayed on what is known of {s.known.shape[1]:,} records"
        yield f"  sentinels at {list(s.boundaries) or 'none'}{known}"
    yield f"  the source continues from {dict(s.source)}"
    if s.skipped_total:
        yield f"  {s.skipped_total:,} unreadable samples skipped, {len(s.skipped)} of them in the chunks in flight"
    if s.passed_over:
        yield f"  rows passed over on request: {', '.join(f'{a} to {b - 1}' for a, b in s.passed_over)}"


# -- how two differ ------------------------------------------------------------------------------------------------
def describe_difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """How the second state differs from the first; one line if it does not."""
    first, second = state_from_plain(a), state_from_plain(b)
    if encode(a) == encode(b):
        return "the states are equal, byte for byte"
    lines = [f"plan: {d}" for d in plan_differences(first.plan, second.plan)]
    if first.lanes_total != second.lanes_total:
        lines.append(f"lanes: {first.lanes_total} against {second.lanes_total}")
    for mark, other in zip(first.datasets, second.datasets, strict=False):
        if mark != other:
            lines.append(f"dataset: {mark[:3]} against {other[:3]}")
    for lane in sorted({*first.lanes, *second.lanes}):
        s, t = first.lanes.get(lane), second.lanes.get(lane)
        if s is None or t is None:
            lines.append(f"lane {lane}: only in the {'second' if s is None else 'first'}")
            continue
        told = [
            f"{name} {x} against {y}"
            for name, x, y in (
                ("rows", s.rows, t.rows),
                ("rounds", s.rounds, t.rounds),
                ("chunks", f"{s.first} to {s.next_chunk - 1}", f"{t.first} to {t.next_chunk - 1}"),
                ("cursor", s.cursor, t.cursor),
                ("source", dict(s.source), dict(t.source)),
                ("rows passed over", list(s.passed_over), list(t.passed_over)),
                ("skipped", s.skipped_total, t.skipped_total),
                ("digest", to_hex(s.digest), to_hex(t.digest)),
            )
            if x != y
        ]
        if told:
            lines.append(f"lane {lane}: {'; '.join(told)}")
    return "\n".join(lines) or "the states differ in what they keep of samples in flight only"


# -- what comes next -----------------------------------------------------------------------------------------------
def next_documents(plain: Mapping[str, Any], steps: int, pipeline: Pipeline) -> Iterator[str]:
    """Which samples the next steps contain, recomputed offline: a line per row, of all lanes."""
    with pipeline.steps() as it:
        it.restore(plain)
        for _ in range(steps):
            try:
                next(it)
            except StopIteration:
                yield "the stream ends here"
                return
            yield f"step {it.step}"
            for row, pieces in it.provenance().items():
                yield f"  row {row}: " + ", ".join(
                    f"{dataset}/{shard}[{sample}]" + ("" if stop is None else f" tokens {start} to {stop}")
                    for dataset, shard, sample, start, stop in pieces
                )


# -- the command ---------------------------------------------------------------------------------------------------
def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `zephon-jax inspect`."""
    parser.add_argument("checkpoint", help="a state's file, an Orbax item's folder, or an Orbax step's folder")
    parser.add_argument("--diff", metavar="OTHER", help="how OTHER differs from it")
    parser.add_argument(
        "--next",
        nargs=2,
        metavar=("N", "FILE.py:NAME"),
        help="which documents the next N steps of this pipeline contain; MODULE:NAME will do as well",
    )
    parser.add_argument("--html", metavar="FILE", help="write a page to look at in a browser instead of printing text")


def run_from(arguments: argparse.Namespace) -> int:
    """Print what was asked for; 1 if the states differ, 2 if something cannot be read or written."""
    try:
        state = inspect(arguments.checkpoint)
        other = None if arguments.diff is None else inspect(arguments.diff)
        documents = None if arguments.next is None else _documents(state, *arguments.next)
        differ = other is not None and encode(state.state) != encode(other.state)
        if arguments.html is not None:
            _write_page(arguments.html, state.page(other=other, documents=documents))
        elif other is not None:
            print(state.difference(other))
        elif documents is not None:
            for line in documents:
                print(line)
        else:
            print(state)
        return int(differ)
    except ZephonError as error:
        print(f"zephon-jax inspect: {error}", file=sys.stderr)
        return 2


def _documents(state: Inspection, steps: str, name: str) -> Iterator[str]:
    if not steps.isdigit():
        raise ConfigurationError(f"--next {steps!r}: the number of steps must be an integer")
    return next_documents(state.state, int(steps), load_pipeline(name))


def _write_page(path: str, text: str) -> None:
    try:
        pathlib.Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--html {path}: the page cannot be written: {error}") from error
