"""What new users met, each as a test."""

from __future__ import annotations

import inspect
import io
import json
import pathlib
import subprocess
import sys
import warnings
import xml.etree.ElementTree as ET

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import zephon_jax as zj
from zephon_jax.display.figures import Figures, OperatorFigures, figures_svg
from zephon_jax.testing import check_operator, check_resume


def pipeline_of(samples, **options):
    return zj.Pipeline(zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", samples), **options)).options(
        executor="inline"
    )


def ones(text):
    return [1] * len(text)


def encoded(text):
    return list(text.encode())


DOCS = [{"text": "ab" * (1 + i % 3)} for i in range(120)]


@pytest.mark.parametrize(
    "build",
    [
        lambda p: p.tokenize(ones).pad(8).shuffle(4),
        lambda p: p.tokenize(ones).pad(4, on_overlong="drop").shuffle(4),
        lambda p: p.tokenize(ones).split(2).pad(8),
        lambda p: p.flat_map(lambda r: [r, r], name="two").tokenize(ones).pad(8),
        lambda p: p.split(3, field="text").tokenize(ones).pad(8),
        lambda p: p.tokenize(ones).pad(8).bucket_by_length([3, 8], 4),
        lambda p: p.tokenize(ones).pad(8).ensure_mixture(mixture={"d": 1}),
    ],
)
def test_padded_records_resume(build):
    """Padding hides how many tokens a record has: what a checkpoint keeps of it must not be taken for that."""
    check_resume(build(pipeline_of(DOCS, chunk_size=8)).batch(global_batch_size=4), batches=9)


def test_provenance_counts_the_tokens_not_the_padding_also_after_a_resume():
    pipeline = pipeline_of(DOCS, chunk_size=8, shuffle_shards=False).tokenize(ones).pad(8).shuffle(4).batch(4)
    with iter(pipeline) as it:
        next(it)
        state = it.checkpoint()
        next(it)
        want = it.provenance()
    with iter(pipeline) as again:
        again.restore(state)
        next(again)
        assert again.provenance() == want
    assert {(stop or 0) - start for ((_, _, _, start, stop),) in want.values()} <= {2, 4, 6}


def test_a_resume_that_compares_nothing_is_no_proof():
    with pytest.raises(zj.ConfigurationError, match=r"check_resume\(batches=5\): only 0 batches came out"):
        check_resume(pipeline_of(list(range(100))).batch(1000), batches=5)
    with pytest.raises(zj.ConfigurationError, match="only 1 batches came out"):
        check_resume(pipeline_of(list(range(100))).batch(60), batches=9)


def test_a_map_that_changes_its_input_leaves_the_users_data_alone():
    talks = [{"messages": [{"role": "user", "content": "hi"}], "more": {"k": [1]}} for _ in range(4)]

    def insert(record):
        record["messages"].insert(0, {"role": "system", "content": "s"})
        record["more"]["k"].append(2)
        return record

    before = json.dumps(talks)
    seen = list(pipeline_of(talks, stop_after_passes=3).map(insert))
    assert {(len(r["messages"]), len(r["more"]["k"])) for r in seen} == {(2, 2)}
    assert json.dumps(talks) == before


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_a_lone_surrogate_says_what_it_is(executor):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    pipeline = pipeline_of([{"text": "ok"}, {"text": "a\ud83d"}], shuffle_shards=False).tokenize(tokenizer)
    with pytest.raises(zj.DataError, match=r"holds a lone surrogate \('\\ud83d' at character 1\).*sample 1"):
        list(pipeline.options(executor=executor))


def sharding():
    return NamedSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), P("data"))


@pytest.mark.parametrize(
    ("value", "dtypes", "text"),
    [
        (1e300, {}, "holds 1e\\+300, which float32 cannot hold"),
        (100001.0, {"v": "float16"}, "holds 100001.0, which float16 cannot hold"),
        (1.7, {"v": "int32"}, "holds 1.7, which int32 cannot hold"),
        (float("nan"), {"v": "int32"}, "holds nan, which int32 cannot hold"),
    ],
)
def test_a_float_that_does_not_fit_is_refused_by_name(value, dtypes, text):
    with pipeline_of([{"v": value}] * 2).batch(2).to_global(sharding(), dtypes=dtypes) as it:
        with pytest.raises(zj.DataError, match=f"the field 'v' {text}"):
            next(it)


def test_floats_that_fit_and_those_that_are_not_finite_pass():
    values = [1.5, float("inf"), float("nan"), -2.25]
    with pipeline_of([{"v": v} for v in values], shuffle_shards=False).batch(4).to_global(sharding()) as it:
        np.testing.assert_array_equal(np.asarray(next(it)["v"]), np.array(values, np.float32))
    with pipeline_of([{"v": 3.0}] * 2).batch(2).to_global(sharding(), dtypes={"v": "int32"}) as it:
        assert np.asarray(next(it)["v"]).tolist() == [3, 3]


def test_a_kept_value_beyond_float32_is_refused():
    with pytest.raises(zj.DataError, match="'m': the value 1e\\+300 does not fit in float32"):
        next(iter(pipeline_of([{"tokens": [1], "m": [1e300]}]).pack(4, keep=["m"]).batch(1)))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: zj.StaticMixtureWorkSource(None), "needs a Dataset or a list of them, got NoneType"),
        (lambda: zj.StaticMixtureWorkSource("x"), "needs a Dataset or a list of them, got str"),
        (lambda: zj.StaticMixtureWorkSource([[1, 2]]), "needs Datasets, got list; make one with Dataset.from_path"),
        (lambda: pipeline_of([1], chunk_size=10**9), "chunk_size=1000000000: a chunk is held in memory"),
        (lambda: pipeline_of([1]).map(lambda r: r, name=5), "name=5 must be a text"),
        (lambda: check_operator(zj.ops.Map(lambda r: r), [5] * 5), "needs records, dicts of fields, got int"),
        (lambda: zj.explain_batch(None), "needs a batch, a dict of arrays, got NoneType"),
        (lambda: zj.explain_batch({"tokens": [[1]]}, row="x"), r"explain_batch\(row='x'\) must be the number of a row"),
        (lambda: zj.inspect(None), "needs a path, or what checkpoint\\(\\) returned, got NoneType"),
        (lambda: zj.inspect(5), "needs a path, or what checkpoint\\(\\) returned, got int"),
        (lambda: zj.explain_batch({"tokens": [[1]]}, tokenizer=encoded), "must go from ids to text.*AttributeError"),
        (lambda: zj.explain_batch({"tokens": [[1]]}, tokenizer=ones), "must go from ids to text.*it made a list"),
    ],
)
def test_wrong_arguments_are_refused_in_words(make, text):
    with pytest.raises(zj.ConfigurationError, match=text):
        make()


class Astray(zj.WorkSource):
    """Hands out samples of a dataset that it does not have."""

    def __init__(self):
        self.given = False

    @property
    def datasets_by_id(self):
        return {0: zj.Dataset.from_source("d", [1, 2, 3])}

    def next_chunk(self):
        if self.given:
            return None
        self.given = True
        return zj.WorkChunk.from_pointers([(7, 0, 0)])

    def clone_for_lane(self, lane_id, canonical_replicas):
        return Astray()

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


def test_a_pointer_to_no_dataset_names_the_work_source():
    with pytest.raises(zj.ContractViolation, match=r"hands out samples of dataset 7, but its datasets_by_id are \[0\]"):
        list(zj.Pipeline(Astray()).options(executor="inline"))


def test_inspect_into_head_ends_quietly(tmp_path):
    from zephon_jax.checkpoint.codec import encode

    with iter(pipeline_of(list(range(50))).batch(2)) as it:
        next(it)
        (tmp_path / "state.zst").write_bytes(encode(it.checkpoint()))
    command = f"{sys.executable} -m zephon_jax.cli inspect {tmp_path / 'state.zst'} | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize("closed", [False, True])
def test_a_loop_without_a_console_goes_on(monkeypatch, closed):
    """As under pythonw, or in a service."""
    file = io.StringIO() if closed else None
    if file is not None:
        file.close()
    monkeypatch.setattr(sys, "stderr", file)
    with pipeline_of(list(range(40))).batch(4).steps() as batches:
        assert sum(1 for _ in zj.progress(batches, total=10, every_s=0)) == 10


def test_a_total_that_is_passed_is_said():
    said = io.StringIO()
    list(zj.progress(range(12), total=10, file=said))
    assert said.getvalue().startswith("step 12, past 10, ")
    assert "left" not in said.getvalue()


def test_nouns_agree_with_their_numbers():
    one = {"tokens": np.array([[7, 0]]), "segment_ids": np.array([[1, 0]])}
    assert str(zj.explain_batch(one)).splitlines() == [
        "row 0: 1 of 2 places hold tokens, 1 document",
        "  [    0:1    ] segment 1: 7",
        "  [    1:2    ] padding, 1 token",
    ]
    assert "1 row, 1 of 2 places hold tokens (50.0 %), 1 document<" in zj.explain_batch(one, None)._repr_html_()
    pipeline = pipeline_of(["a"] * 9, chunk_size=1).batch(1)
    with iter(pipeline) as it:
        next(it)
        text = str(it.timeline())
    assert "1 lane, 1 row delivered; a resume replays 1 chunk (1 sample), 1 per lane" in text
    assert "replays chunk 0 (1 sample) and drops" in text


@pytest.mark.parametrize(
    "name", ["map(a_rather_long_name_of_a_function)", "tokenize(" + "m" * 40, "WMWM" * 9, "i" * 99]
)
def test_a_long_name_keeps_clear_of_its_bar(name):
    """By the widths of a font that is wider than most."""
    fonts, text = pytest.importorskip("matplotlib.font_manager"), pytest.importorskip("matplotlib.textpath")
    operators = (OperatorFigures(name, 1, 1, 0, 1.0, ()), OperatorFigures(f"x{name}", 1, 1, 0, 0.5, ()))
    picture = ET.fromstring(figures_svg(Figures("t", "", 0.5, operators, (), ())))
    shown = [e for e in picture.iter() if e.tag.endswith("text") and (e.text or "").endswith("…")]
    assert len(shown) == 2
    bar = min(float(e.get("x")) for e in picture.iter() if e.tag.endswith("rect") and e.get("height") == "16")
    for one in shown:
        font = fonts.FontProperties(family="DejaVu Sans", weight=one.get("font-weight", "400"))
        width = text.TextPath((0, 0), one.text, size=float(one.get("font-size")), prop=font).get_extents().width
        assert float(one.get("x")) + width < bar - 3


def test_a_dropped_field_is_told_at_the_line_that_packs():
    """Also where the packer runs in another thread, which no line of the user's has called."""
    records = [{"tokens": [1, 2], "note": "n"}] * 8
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        frame = inspect.currentframe()
        assert frame is not None
        line = frame.f_lineno + 1
        pipeline = pipeline_of(records).pack(4).batch(2)
        with pipeline.steps() as batches:
            next(batches)
    (one,) = [w for w in seen if "drops the fields ['note']" in str(w.message)]
    assert (one.filename, one.lineno, one.category) == (__file__, line, UserWarning)


NAMED = """
import zephon_jax as zj
import dataclasses
from beside_it import records
pipeline = zj.Pipeline(zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", records))).batch(2)
def made(): return pipeline
def fails(): raise ValueError("first line\\nsecond line")
def leaves(): raise SystemExit(0)
def other(): return 5
number = 3
"""


@pytest.fixture
def saved(tmp_path, monkeypatch):
    from zephon_jax.checkpoint.codec import encode

    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside_it.py").write_text("records = [*range(50)]\n")
    (tmp_path / "train.py").write_text(NAMED)
    with iter(pipeline_of(list(range(50))).batch(2)) as it:
        next(it)
        (tmp_path / "state.zst").write_bytes(encode(it.checkpoint()))
    yield tmp_path
    sys.modules.pop("beside_it", None)


@pytest.mark.parametrize("name", ["pipeline", "made", ""])
def test_inspect_takes_a_pipeline_of_a_file(saved, capsys, name):
    from zephon_jax.cli import main

    target = f"{saved / 'train.py'}:{name}".removesuffix(":")
    assert main(["inspect", str(saved / "state.zst"), "--next", "1", target]) == 0
    assert capsys.readouterr().out.startswith("step 2\n  row 0: d/d[")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.py:fails", "was called without arguments and failed: ValueError: first line second line\n"),
        ("train.py:leaves", "was called without arguments and failed: SystemExit: 0"),
        ("train.py:other", "returned a int; it must return a Pipeline"),
        ("train.py:number", "is a int; a Pipeline, or a function that returns one, is needed"),
        ("train.py:nothing", "has no 'nothing': name the pipeline as"),
        ("nowhere.py:p", "no such file"),
        (":p", "name the pipeline as FILE.py:NAME or MODULE:NAME"),
    ],
)
def test_a_named_pipeline_that_cannot_be_had_is_one_line(saved, capsys, monkeypatch, name, text):
    from zephon_jax.cli import main

    monkeypatch.chdir(saved)
    assert main(["inspect", "state.zst", "--next", "1", name]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("zephon-jax inspect: ")
    assert text in said.err
    assert said.err.count("\n") == 1


def test_the_package_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "zephon_jax", "inspect", "nowhere"],
        cwd=pathlib.Path(__file__).parents[1],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "zephon-jax inspect: nowhere: no such file or folder\n")


def until_it_fails(error, **options):
    """How many records come, and what then; sample 27 raises."""

    def fail(record):
        if record["value"] == 27:
            raise error
        return record

    given = {"executor": "inline", "canonical_replicas": 1, "micro_batch_records": 10, **options}
    pipeline = pipeline_of(list(range(40)), shuffle_shards=False, chunk_size=40).map(fail).batch(1).options(**given)
    came = 0
    try:
        with pipeline.steps() as batches:
            for _ in batches:
                came += 1
    except BaseException as raised:
        return came, raised
    return came, None


def test_what_comes_before_an_error_in_its_micro_batch():
    came, error = until_it_fails(ValueError("no"))
    assert came == 20
    assert "sample 27" in str(error)
    came, error = until_it_fails(ValueError("no"), micro_batch_records=1)
    assert came == 27
    assert "sample 27" in str(error)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_ends_programs_comes_out_as_it_is_where_it_runs_inline(kind):
    """In a thread it would end nothing: there it is an error, of the micro-batch that began with sample 20."""
    raised = kind(3)
    assert until_it_fails(raised) == (20, raised)
    came, error = until_it_fails(raised, executor="threads")
    assert came == 20
    assert isinstance(error, zj.WorkerError)
    assert f"raised {kind.__name__}: 3" in str(error)
    assert "sample 20" in str(error)


def test_skip_is_for_what_a_source_cannot_decode():
    pipeline = pipeline_of([{"x": b"abcd"}, {"x": b"abc"}], shuffle_shards=False).apply(zj.ops.DecodeRaw("x", "i4"))
    with pytest.raises(zj.DataError, match="holds 3 bytes; int32 needs a multiple of 4.*sample 1"):
        list(pipeline.options(on_data_error="skip").batch(1).steps())
