"""The demo as a whole: write the corpus, run three trainers, kill one, compare, report.

The reference and the trainer that will be killed run at the same time, and so do the reference and the resumed one:
most of a trainer's life on a small machine is importing and compiling. What they compute does not depend on it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import pathlib
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence

from zephon_jax.demo.corpus import TOKENIZER_FILE, train_tokenizer, write_corpus
from zephon_jax.demo.picture import draw
from zephon_jax.demo.report import Outcome, render
from zephon_jax.demo.settings import FULL, QUICK, Settings, mesh_shape
from zephon_jax.demo.trainers import Trainer, TrainerError, ending, watch
from zephon_jax.errors import ZephonError

__all__ = ["add_arguments", "conclude", "main", "run", "run_from"]

NEEDED = ("tokenizers", "matplotlib")
PICTURE_FILE = "loss.png"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `zephon-jax demo`."""
    parser.add_argument("--quick", action="store_true", help="a smaller run: fewer steps, and 4 devices, then 2")
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=pathlib.Path("zephon-demo"),
        help="folder of the picture (default: %(default)s)",
    )
    parser.add_argument("--keep", action="store_true", help="keep the corpus, the logs and the checkpoints")


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m zephon_jax.demo`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="zephon-jax demo", description="Kill a training run, resume it, compare.")
    add_arguments(parser)
    return run_from(parser.parse_args(argv))


def run_from(arguments: argparse.Namespace) -> int:
    """Run the demo as the parsed options of `add_arguments` say."""
    return run(QUICK if arguments.quick else FULL, arguments.out, keep=arguments.keep)


def run(settings: Settings, out: pathlib.Path, *, keep: bool = False) -> int:
    """Run the demo and print its report; the picture goes to `out/loss.png`.

    Returns 0 if every global batch is equal bit for bit and the losses are within the tolerance, 1 if not or if a
    trainer failed, 2 if a package is missing, 130 after Ctrl-C. Working files lie in a fresh folder in `out`, removed
    at the end unless `keep` is set or something differs.
    """
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        print(f'zephon-jax demo needs {" and ".join(missing)}: pip install "zephon-jax[demo]"', file=sys.stderr)
        return 2
    out.mkdir(parents=True, exist_ok=True)
    work = pathlib.Path(tempfile.mkdtemp(prefix="work-", dir=out)).absolute()
    code = 1
    try:
        started = time.monotonic()
        _prepare(settings, work)
        code = conclude(_train(settings, work, started), settings, out / PICTURE_FILE)
    except (TrainerError, ZephonError) as failure:
        print(f"FAILED {failure}", file=sys.stderr)
    except KeyboardInterrupt:
        print("stopped; the trainers have been ended", file=sys.stderr)
        code = 130
    finally:
        if keep or code == 1:
            print(f"working files kept in {work}")
        else:
            shutil.rmtree(work)
    return code


def conclude(outcome: Outcome, settings: Settings, picture: pathlib.Path) -> int:
    """Compare the runs, print the report, draw the picture; returns the exit code, 0 or 1."""
    comparison = outcome.compare(settings)
    print(f"\n{render(outcome, comparison, settings)}\n", flush=True)
    for problem in comparison.problems:
        print(f"FAILED {problem}", file=sys.stderr)
    draw(outcome, comparison, settings, picture)
    print(f"picture: {picture}")
    return 1 if comparison.problems else 0


def _prepare(settings: Settings, work: pathlib.Path) -> None:
    settings.write(work)
    corpus = write_corpus(work, total_bytes=settings.corpus_bytes, sample_bytes=settings.tokenizer_sample_bytes)
    train_tokenizer(corpus.sample, vocabulary_size=settings.vocabulary_size).save(str(work / TOKENIZER_FILE))
    _say(
        f"corpus: {corpus.text_bytes / 1e6:.1f} MB of Python source in {corpus.files} files, cut into"
        f" {corpus.documents:,} documents; a vocabulary of {settings.vocabulary_size:,}"
    )


def _train(settings: Settings, work: pathlib.Path, started: float) -> Outcome:
    with contextlib.ExitStack() as stack:

        def start(name: str, *, checkpoints: str, devices: int) -> Trainer:
            trainer = Trainer(name, work, checkpoints=checkpoints, devices=devices)
            stack.callback(trainer.end)
            data, model = mesh_shape(devices)
            _say(f"{name}: trainer started on {devices} devices, mesh of {data} data x {model} model")
            return trainer

        reference = start("reference", checkpoints="reference", devices=settings.devices)
        interrupted = start("interrupted", checkpoints="interrupted", devices=settings.devices)
        watch([reference, interrupted], until=lambda: _may_be_killed(interrupted, settings))
        code = interrupted.kill()
        _say(f"interrupted: {ending(code)} after step {interrupted.log.last_step}")
        newest = interrupted.checkpoints / str(interrupted.committed_steps()[-1])
        data_bytes, checkpoint_bytes = _size(newest / "data"), _size(newest)
        resumed = start("resumed", checkpoints="interrupted", devices=settings.resume_devices)
        watch([reference, resumed], until=lambda: reference.returncode == 0 and resumed.returncode == 0)
        for trainer in (reference, resumed):
            trainer.refresh()
    seconds = time.monotonic() - started
    return Outcome(reference.log, interrupted.log, resumed.log, code, data_bytes, checkpoint_bytes, seconds)


def _may_be_killed(trainer: Trainer, settings: Settings) -> bool:
    """Whether the last step lies strictly between two checkpoints, late enough, with a checkpoint to resume from."""
    step = trainer.log.last_step
    if step >= settings.steps - 1:
        raise TrainerError(f"{trainer.name}: at step {step} there is no committed checkpoint to resume from")
    return step >= settings.kill_after and step % settings.save_every > 0 and bool(trainer.committed_steps())


def _size(folder: pathlib.Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _say(line: str) -> None:
    print(line, flush=True)
