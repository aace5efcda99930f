"""Mistakes in the protocol: name → (text as it stands there, what it becomes). The search must notice each."""

from __future__ import annotations

MISTAKES: dict[str, tuple[str, str]] = {
    "the result is overwritten, not created": (
        "    if (yield Create(key(round_, RESULT), outcome)):\n        return outcome",
        "    yield Put(key(round_, RESULT), outcome)\n    if True:\n        return outcome",
    ),
    "a round decided before one came is joined": (
        "if (yield Get(key(said, RESULT))) is not None:  # law B",
        "if (yield Get(key(said, RESULT))) is ...:  # law B",
    ),
    "a merge without one's own state is accepted": ("if (me.rank, me.nonce) in outcome.parts:", "if True:"),
    "coverage is the union of lanes, not per rank": (
        "        missing = tuple(rank for rank in missing if rank not in parts)\n",
        "        owned = {x for p in parts.values() for x in p.owned}\n"
        "        missing = tuple(r for r in missing if not set(ranks.owners[r] or ()) <= owned)\n",
    ),
    "plans are not compared": ("if part.stamp.plan != mine.stamp.plan:", "if False:"),
    "mappings are not compared": ("if part.stamp.mapping != mine.stamp.mapping:", "if False:"),
    "steps are not compared": ("if part.stamp.step != mine.stamp.step:", "if False:"),
    "the lanes of a rank are not compared with the mapping": (
        "if owned is not None and owned != part.owned:",
        "if False:",
    ),
    "a lane that nobody owns is overlooked": (
        "if lacking := sorted(set(range(ranks.lanes)) - set(lanes)):",
        "if lacking := []:",
    ),
    "a rank's missing lanes are overlooked": (
        "if lacking := sorted(set(part.owned) - {share.lane for share in part.shares}):",
        "if lacking := []:",
    ),
    "an error report is not read": ("    if part.error:", "    if False:"),
    "what peers delivered is not compared": ("            if first != mark:", "            if False:"),
    "the leader decides a failure before everyone is in": (
        "    while missing:\n        came",
        "    failure = broken(ranks, me, me)\n    while missing and failure is None:\n        came",
    ),
    "the check of the leader is not asked": (
        "proposed = Failed(why) if why else proposed",
        "outcome = yield from decide(round_, proposed)\n        proposed = Failed(why) if why else proposed\n"
        "        if why: return Departure(round_, proposed)",
    ),
    "a follower whose budget ends leaves the round undecided": (
        "outcome = yield from decide(said, late(me, ranks, {}, tuple(r for r in absent if r != me.rank)))",
        'return Departure(said, Failed("late", kind="timeout"))',
    ),
    "a follower follows a newer leader without deciding the old round": (
        "outcome = yield from decide(said, superseded(now))",
        "outcome = superseded(now)",
    ),
    "a follower goes back to an older round when its announcement is written twice": (
        "or (over and number_of(said) < number_of(over)):",
        "or False:",
    ),
    "the leader fails without a notice": (
        "    outcome = yield from decide(round_, proposed)\n    if isinstance",
        "    outcome = proposed\n    if isinstance(outcome, Merged):\n"
        "        outcome = yield from decide(round_, outcome)\n    if isinstance",
    ),
    "a waiting follower does not watch the announcement": (
        "Wait(((key(said, RESULT), None), (ANNOUNCE, said)), deadline)",
        "Wait(((key(said, RESULT), None),), deadline)",
    ),
    "the leader does not look whether a follower gave up": (
        "        failure = yield Get(key(round_, RESULT))  #",
        "        failure = None  #",
    ),
    "a leader leaves without a last look at the announcement": (
        "    said = yield Get(ANNOUNCE)\n    if said != round_:  # our",
        "    said = round_\n    if said != round_:  # our",
    ),
    "the round's id is the same in every run": (
        'round_ = f"{number:0{_NUMBER}d}.{me.nonce}"',
        'round_ = "000001.n0.0.0"',
    ),
    "the leader sweeps the round itself once published": (
        "    return Departure(round_, outcome)  # decided",
        "    yield from sweep(number + 1, merged=True)\n    return Departure(round_, outcome)  # decided",
    ),
    "the leader sweeps the merge before it while it begins a round": (
        "yield from sweep(number - 1, merged=False)",
        "yield from sweep(number, merged=True)",
    ),
    "shutting down does not care who still reads": (
        "        if (yield Get(key(round_, SLOT, rank))) is not None:  # has not",
        "        if (yield Get(key(round_, SLOT, rank))) is ...:  # has not",
    ),
    "nothing is ever swept": ("if number_of(k[2:]) < below)", "if False)"),
    "waiting for acknowledgements has a budget of its own": (
        "expired = yield Wait(((key(round_, ACK, pending[0]), None),), deadline)",
        "expired = yield Wait(((key(round_, ACK, pending[0]), None),), deadline + 60)",
    ),
    "a restarted leader's takeover makes followers fail": ('elif outcome.kind == "superseded":', "elif False:"),
    "one's own slot, written by a repeated create, is taken for a stranger's": (
        "if slot is None or slot.nonce != me.nonce:",
        "if True:",
    ),
    "states are kept under the rank only, without the round": (
        '    return f"r/{round_}-{kind}" if rank is None else',
        '    if kind == SLOT and rank is not None:\n        return f"r/000000.x-{kind}-{rank}"\n'
        '    return f"r/{round_}-{kind}" if rank is None else',
    ),
    "a lane is taken from the last of its producers": (
        "lanes.setdefault(lane, (lane, rank, state))",
        "lanes[lane] = (lane, 0, state)",
    ),
}

LATE = {  # only in searches that take longer: a second leader, and three rounds without a meeting
    "a follower follows a newer leader without deciding the old round",
    "a follower goes back to an older round when its announcement is written twice",
    "a leader leaves without a last look at the announcement",
}
SOON = [name for name in MISTAKES if name not in LATE]
