"""A run of seconds that a seeded mistake in an operator must fail: `python -m tests.ops.quick_check`.

The comparisons with references, on random input of fixed seeds instead of searched input.
"""

from __future__ import annotations

import random
import sys
import warnings

from tests.ops import test_chat, test_packings, test_padding, test_reordering, test_rows_many, test_split, test_tokenize


def inner(test):
    return test.hypothesis.inner_test


def packings(rng: random.Random) -> None:
    docs = [[rng.randint(1, 99) for _ in range(rng.choice([0, 1, 2, 3, 5, 8, 14]))] for _ in range(40)]
    parts, capacity, bins = [rng.randint(0, 6) for _ in range(12)], rng.randint(1, 10), rng.choice([1, 2, 3, 5, 60])
    most = rng.choice([None, 1, 2, 3])
    inner(test_packings.test_best_fit)(docs, parts, capacity, bins, most)
    inner(test_packings.test_first_fit_with_a_limit_of_segments)(docs, parts, capacity, bins, most or 2)
    inner(test_packings.test_wrap)(docs, parts, capacity, most)
    inner(test_packings.test_best_fit_that_cuts_to_fill)(docs, parts, rng.choice([3, 7, 130, 320]), min(bins, 5), most)
    long = [[1] * rng.randint(1, 40) for _ in range(40)]
    inner(test_packings.test_best_fit_that_cuts_to_fill)(long, parts, 320, 3, None)
    inner(test_packings.test_lengths_alone_decide)(docs, parts, rng.choice(test_packings.ALL[:9]), rng)
    pairs = [(rng.choice("abc"), rng.randint(1, 9)) for _ in range(40)]
    inner(test_packings.test_groups_share_no_row)(pairs, parts, rng.choice([1, 3]))
    several = [(rng.randint(1, 8), rng.randint(0, 4)) for _ in range(30)]
    inner(test_packings.test_several_lengths)(several, parts, rng.choice([1, 2, 4]), rng.random() < 0.5)


def others(rng: random.Random) -> None:
    lists = [[rng.randint(-3, 3) for _ in range(rng.randint(0, 9))] for _ in range(12)]
    parts = [rng.randint(0, 6) for _ in range(12)]
    inner(test_split.test_windows_overlap)(lists, parts, rng.randint(1, 6), rng.randint(0, 5))
    separators = rng.choice([[0], [1, 2]])
    inner(test_split.test_cut_at_separators)(lists, parts, rng.choice([None, 1, 2, 4]), separators, rng.random() < 0.5)
    inner(test_split.test_pieces_at_separators_know_their_span)(lists, rng.choice([None, 2, 4]), rng.random() < 0.5)
    lengths = [rng.randint(0, 12) for _ in range(50)]
    field = rng.choice(["tokens", "text"])
    inner(test_reordering.test_records_of_like_length_go_together)(lengths, parts, [2, 5, 9], rng.randint(1, 4), field)
    stream = [(rng.randint(0, 2), rng.randint(0, 9)) for _ in range(60)]
    shares = rng.choice([{0: 1, 1: 1, 2: 2}, {0: 4, 1: 1}])
    inner(test_reordering.test_the_dataset_that_lags_goes_first)(
        stream, parts, shares, rng.randint(1, 9), rng.random() < 0.5
    )
    positive = [[abs(t) + 1 for t in one[:8]] for one in lists]
    inner(test_padding.test_one_document_per_row)(positive, parts, rng.choice(["truncate", "drop"]))
    inner(test_rows_many.test_flat_map_gives_each_child_an_identity)(
        [{"n": rng.randint(0, 5)} for _ in range(20)], parts
    )


def main() -> int:
    warnings.simplefilter("ignore")
    for seed in range(25):
        packings(random.Random(seed))
        others(random.Random(seed))
    for case in (
        test_packings.test_rows_of_groups_leave_in_the_order_of_what_made_them_leave,
        test_packings.test_kept_fields_are_packed_cut_and_padded_like_the_tokens,
        test_packings.test_kept_fields_come_from_records_that_are_read_after_the_decision,
        test_packings.test_a_hundred_documents_of_one_token_with_at_most_eight_in_a_row,
        test_padding.test_without_packing_segment_ids_are_the_padding_mask,
        test_padding.test_rows_of_a_batch_become_as_long_as_the_longest,
        test_reordering.test_figures_say_what_went_and_what_was_out_of_turn,
        test_rows_many.test_random_map_draws_by_identity_not_by_time,
        test_rows_many.test_map_columns_sees_one_form_whatever_the_neighbours_are,
        test_chat.test_spans_of_a_template_by_hand,
    ):
        case()
    bpe = test_tokenize.trained(400)
    test_chat.test_ids_are_those_of_the_rendered_text_and_the_loss_is_on_the_answers(bpe)
    test_chat.test_packed_with_its_mask_only_answers_are_trained_on(bpe)
    for options in (o for o in test_packings.ALL if "drop" not in o.values() and "truncate" not in o.values()):
        test_packings.test_no_token_is_lost_and_rows_know_their_samples(options)
    print("operators: all equal")
    return 0


if __name__ == "__main__":
    sys.exit(main())
