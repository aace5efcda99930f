"""chat: the text that the template makes, the ids of that text, and the loss on chosen roles only."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import zephon_jax as zj
from tests.ops import batch_of
from tests.ops.test_tokenize import trained
from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.ops import Chat
from zephon_jax.ops.base import RecordFailure
from zephon_jax.ops.templates import ChatTemplate
from zephon_jax.testing import check_operator, check_resume

pytest.importorskip("jinja2")

CHATML = """
{%- for m in messages -%}
<|{{ m.role }}|>
{{ m.content }}<|end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|assistant|>
{% endif -%}
"""
MARKED = """
{%- for m in messages -%}
<{{ m.role }}>
{%- if m.role == 'assistant' %}{% generation %}{{ m.content }}</s>{% endgeneration %}{% else %}{{ m.content }}{% endif %}
{%- endfor -%}
"""
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Zwei plus zwei?"},
    {"role": "assistant", "content": "Vier 😀."},
    {"role": "user", "content": "Danke!"},
    {"role": "assistant", "content": "Gern."},
]
WHOLE = (
    "<|system|>\nBe brief.<|end|>\n<|user|>\nZwei plus zwei?<|end|>\n<|assistant|>\nVier 😀.<|end|>\n"
    "<|user|>\nDanke!<|end|>\n<|assistant|>\nGern.<|end|>\n"
)


@pytest.fixture(scope="module")
def bpe():
    return trained(400)


def row_of(op: Chat, **record: Any) -> dict[str, Any]:
    return op.process(batch_of([record])).rows()[0]


def trained_text(tokenizer, row) -> list[str]:
    """The stretches of text that the loss counts."""
    out: list[list[int]] = []
    before = False
    for token, counts in zip(row["tokens"].tolist(), row["loss_mask"].tolist(), strict=True):
        if counts and not before:
            out.append([])
        if counts:
            out[-1].append(token)
        before = counts
    return [tokenizer.decode(ids) for ids in out]


def test_ids_are_those_of_the_rendered_text_and_the_loss_is_on_the_answers(bpe):
    row = row_of(Chat(bpe, CHATML), messages=TALK, n=3)
    assert row["tokens"].tolist() == bpe.encode(WHOLE, add_special_tokens=False).ids
    assert trained_text(bpe, row) == ["Vier 😀.<|end|>\n", "Gern.<|end|>\n"]
    assert row["loss_mask"].dtype == np.bool_
    assert (row["tokens"].dtype, int(row["n"]), "messages" in row) == (np.int32, 3, False)


@pytest.mark.parametrize(
    ("roles", "texts"),
    [
        ([], []),
        (["user"], ["<|user|>\nZwei plus zwei?<|end|>\n", "<|user|>\nDanke!<|end|>\n"]),
        (["system", "assistant"], ["<|system|>\nBe brief.<|end|>\n", "Vier 😀.<|end|>\n", "Gern.<|end|>\n"]),
    ],
)
def test_other_roles(bpe, roles, texts):
    assert trained_text(bpe, row_of(Chat(bpe, CHATML, train_on=roles), messages=TALK)) == texts


def test_generation_blocks_say_what_counts(bpe):
    row = row_of(Chat(bpe, MARKED), messages=TALK)
    assert trained_text(bpe, row) == ["Vier 😀.</s>", "Gern.</s>"]
    text = "<system>Be brief.<user>Zwei plus zwei?<assistant>Vier 😀.</s><user>Danke!<assistant>Gern.</s>"
    assert bpe.decode(row["tokens"].tolist()) == text


def test_spans_of_a_template_by_hand():
    assert ChatTemplate(MARKED, {}).render(TALK[1:3], frozenset(), {}) == (
        "<user>Zwei plus zwei?<assistant>Vier 😀.</s>",
        [(32, 43)],
    )
    text, spans = ChatTemplate(CHATML, {}).render(TALK, frozenset(["assistant"]), {})
    assert text == WHOLE
    assert [text[a:b] for a, b in spans] == ["Vier 😀.<|end|>\n", "Gern.<|end|>\n"]


def test_a_template_that_rewrites_earlier_messages_is_refused(bpe):
    last_only = (
        "{% for m in messages %}[{{ m.role }}]{% if loop.last or m.role == 'user' %}{{ m.content }}{% else %}…{% endif %}"
        "{% endfor %}"
    )
    op = Chat(bpe, last_only)
    assert trained_text(bpe, row_of(op, messages=TALK[1:3])) == ["[assistant]Vier 😀."]
    with pytest.raises(RecordFailure) as caught:
        row_of(op, messages=TALK)
    assert "writes message 2 differently when others follow it" in str(caught.value.__cause__)


def test_a_tokenizer_brings_its_own_template_and_names():
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=trained(400), bos_token="<bos>", eos_token="<eos>")
    with pytest.raises(ConfigurationError, match="the tokenizer has no chat_template"):
        Chat(fast)
    fast.chat_template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    row = row_of(Chat(fast), messages=TALK[1:3])
    assert row["tokens"].tolist() == fast.apply_chat_template(TALK[1:3], tokenize=True, return_dict=False)
    assert row["tokens"].tolist().count(fast.eos_token_id) == 2
    assert trained_text(fast, row) == ["Vier 😀.<eos>"]


def test_context_and_length(bpe):
    op = Chat(
        bpe, "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}", context=["tools"], max_length=9
    )
    row = row_of(op, messages=TALK[1:3], tools=[{"name": "größe"}])
    assert len(row["tokens"]) == len(row["loss_mask"]) == 9
    assert bpe.decode(row["tokens"].tolist()).startswith('[{"name": "')
    assert row["tools"] == [{"name": "größe"}]


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ({"messages": "hello"}, "chat needs a list of messages, each with a role, in 'messages', got 'hello'"),
        ({"messages": []}, "needs a list of messages"),
        ({"messages": [{"content": "a"}]}, "needs a list of messages, each with a role"),
        ({"messages": [{"role": "user", "content": "a\uf8f0"}]}, "holds one of the characters U"),
        (
            {"messages": [{"role": "user", "content": None}, {"role": "user", "content": "x"}]},
            "refuses the conversation: no",
        ),
    ],
    ids=str,
)
def test_conversations_that_cannot_be_rendered_name_the_record(bpe, record, text):
    template = (
        "{% for m in messages %}{% if m.content is none %}{{ raise_exception('no content') }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    )
    with pytest.raises(RecordFailure) as caught:
        Chat(bpe, template).process(batch_of([{"messages": TALK}, record]))
    assert caught.value.index == 1
    assert isinstance(caught.value.__cause__, DataError)
    assert text in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"template": "{% for %}"}, r"chat\(template=\): line 1:"),
        ({"template": ""}, "chat needs a template"),
        ({"template": "x", "train_on": "user"}, r"chat\(train_on='user'\) must be a list of names: \['user'\]"),
        (
            {"template": "x", "tokenizer": lambda text: [1]},
            "needs a tokenizer that tells where in the text a token comes from",
        ),
        ({"template": "x", "max_length": 0}, r"chat\(max_length=0\) must be at least 1"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_parameters_that_cannot_work(bpe, options, text):
    with pytest.raises(ConfigurationError, match=text):
        Chat(**{"tokenizer": bpe, **options})


def test_the_sandbox_and_the_clock(bpe):
    with pytest.raises(RecordFailure) as caught:
        row_of(Chat(bpe, "{{ messages.__class__.__mro__ }}"), messages=TALK)
    assert "SecurityError" in str(caught.value.__cause__)
    with pytest.raises(RecordFailure) as caught:
        row_of(Chat(bpe, "{{ strftime_now('%Y') }}"), messages=TALK)
    assert "the template asks for the time" in str(caught.value.__cause__)


def test_everything_that_decides_the_ids_is_part_of_the_plan(bpe):
    base = {"template": CHATML, "train_on": ["assistant"], "max_length": 9}
    changes = [
        {},
        {"template": MARKED},
        {"train_on": ["user"]},
        {"max_length": 8},
        {"bos_token": "x"},
        {"context": ["t"]},
    ]
    assert len({str(Chat(bpe, **{**base, **c}).identity()) for c in changes}) == len(changes)
    assert Chat(trained(401), **base).identity() != Chat(bpe, **base).identity()
    assert pickle.loads(pickle.dumps(ChatTemplate(CHATML, {}))).render(TALK, frozenset(), {})[0] == WHOLE


def conversations(n):
    return [
        {
            "messages": [
                {"role": "user", "content": "x" * (i % 7 + 1)},
                {"role": "assistant", "content": "yes " * (i % 5)},
            ]
        }
        for i in range(n)
    ]


def test_the_operator_contract(bpe):
    check_operator(Chat(bpe, CHATML), conversations(20))


def test_packed_with_its_mask_only_answers_are_trained_on(bpe):
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("talk", conversations(60)), seed=2, chunk_size=8)
    pipeline = zj.Pipeline(work).chat(bpe, CHATML).pack(65, keep=["loss_mask"]).batch(2).lm_targets()
    pipeline = pipeline.options(executor="inline")
    for batch in pipeline:
        for targets, weights in zip(batch["targets"], batch["loss_weights"], strict=True):
            text = bpe.decode(targets[weights > 0].tolist())
            assert set(text.replace("<|end|>\n", "").split()) <= {"yes"}
        assert 0 < batch["loss_weights"].sum() < batch["loss_weights"].size
    check_resume(pipeline, batches=4)


def test_a_mask_that_is_not_kept_is_no_silent_loss(bpe):
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("talk", conversations(60)))
    pipeline = zj.Pipeline(work).chat(bpe, CHATML).pack(65).batch(2)
    with pytest.raises(DataError, match=r"would drop 'loss_mask'.*keep=\['loss_mask'\]"):
        next(iter(pipeline))
