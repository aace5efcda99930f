"""One aggregation round, without I/O: `lead` and `follow` yield effects, `drive` performs them. Pure.

Every process contributes a part; rank 0 collects the parts, merges them, and all of them leave with the same outcome.

    leader (rank 0)                                     follower
    get announce, number + 1                            get announce, or wait until there is another one
    sweep crashed and failed rounds, not the last       result there already?  not mine: wait for another
    put announce                                        create slot; somebody else's there?  not mine
    get slots until every rank is in                    wait: result, or another announcement, or the deadline
    check them; sweep everything older                  deadline or other leader: create result = Failed, take what is there
    create result = Merged | Failed, take what is there delete slot, put ack, leave
    look at the announcement once more
    wait for acks till the deadline, delete them, leave

Assumed of the store: one key at a time is linearizable under get, overwrite, create-if-absent and delete. Listing may lag,
so only sweeping, and the wording of an error, use it. A driver may repeat any effect whose answer was lost.

Laws; each has seeded mistakes in `tests/coordinate/mistakes.py` that the search must notice:

A   A round has one outcome, the value that was *created* under its result key. Anyone who has joined may try to create
    `Failed`; whoever loses the race takes what is there. So all who leave a round agree. Sweeping a result un-decides its
    round, so a leader looks at the announcement once more before it leaves.
B   Joining is creating one's slot in an undecided round. A round decided before one came is never one's own, whatever it
    says; nor is a slot that someone else filled (a dead run, a second process of that rank), nor a merge that does not list
    one's own nonce (the slot was free again because the other had acknowledged and deleted it).
C   Who has joined leaves by the outcome only; a newer announcement or the end of the budget first decides the round.
D   The leader merges when every *rank* has filled its slot with every lane it owns, by the same plan, mapping and step.
    It decides a failure, too, only when everyone is in or the budget is spent: who came after a decision would wait.
E   A merge is swept only when everyone has joined a later round; what crashed or failed, two rounds later.

There is no clock here: `Wait` carries the deadline, the driver says whether it has passed. Every wait of a call has the
same one. What a generator knows it keeps in local variables, so that the search can tell its states apart.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, NamedTuple, TypeAlias

__all__ = [
    "Check",
    "Create",
    "Delete",
    "DeleteEach",
    "Departure",
    "Effect",
    "Failed",
    "Get",
    "GetEach",
    "List",
    "Merged",
    "Part",
    "Put",
    "Ranks",
    "Share",
    "Stamp",
    "Steps",
    "Wait",
    "describe",
    "follow",
    "lead",
    "shut_down",
]

ANNOUNCE: Final = "announce"  # the only key without a round in it: the round's id, overwritten
SLOT, RESULT, ACK = "state", "result", "ack"
_NUMBER: Final = 6  # digits of a round's number, in front of its id


# -- effects -------------------------------------------------------------------------------------------------------
class Get(NamedTuple):
    """→ the value, or None."""

    key: str


class GetEach(NamedTuple):
    """→ a tuple of values or None, each read at some moment, in any order."""

    keys: tuple[str, ...]


class Put(NamedTuple):
    """Overwrite."""

    key: str
    value: Any


class Create(NamedTuple):
    """→ False if the key exists."""

    key: str
    value: Any


class List(NamedTuple):
    """→ a tuple of keys; it may lag behind."""

    prefix: str


class Delete(NamedTuple):
    """No error if missing."""

    key: str


class DeleteEach(NamedTuple):
    """As many `Delete`, in any order."""

    keys: tuple[str, ...]


class Wait(NamedTuple):
    """→ False when a key differs from what was seen, or for nothing; True once the deadline has passed.

    The first key is the one that is expected to change.
    """

    seen: tuple[tuple[str, Any], ...]
    deadline: float


class Check(NamedTuple):
    """→ "" or why the caller of the leader does not let this merge happen."""

    merged: Merged


Effect: TypeAlias = Get | GetEach | Put | Create | List | Delete | DeleteEach | Wait | Check
Steps: TypeAlias = Generator[Effect, Any, Any]


# -- values --------------------------------------------------------------------------------------------------------
class Stamp(NamedTuple):
    """What all parts of a round must agree in: digests of the plan and of the lane mapping, and the step."""

    plan: str
    mapping: str
    step: int


class Share(NamedTuple):
    """A lane in a part: `mark` says what was delivered of it and must be equal on all its producers."""

    lane: int
    mark: str
    state: bytes


class Part(NamedTuple):
    """What one rank contributes. `nonce`: fresh in every call. `error`: why there is nothing to contribute, or ""."""

    rank: int
    nonce: str
    stamp: Stamp
    owned: tuple[int, ...]
    shares: tuple[Share, ...]
    error: str = ""


class Merged(NamedTuple):
    """The outcome of a good round. `parts`: (rank, nonce) of all; `lanes`: (lane, the lowest rank that owns it, state)."""

    round: str
    stamp: Stamp
    parts: tuple[tuple[int, str], ...]
    lanes: tuple[tuple[int, int, bytes], ...]


class Failed(NamedTuple):
    """The outcome of any other. `missing`: (rank, lanes it owns) of those that were not there; lanes empty if unknown."""

    reason: str
    missing: tuple[tuple[int, tuple[int, ...]], ...] = ()
    kind: str = "failed"  # or "timeout", "superseded"


class Departure(NamedTuple):
    """How a process left: the round, None if it joined none, and its outcome."""

    round: str | None
    outcome: Merged | Failed


class Ranks(NamedTuple):
    """Who takes part. `lanes`: of the pipeline; `owners`: per rank its lanes, None where that is not known beforehand."""

    lanes: int
    owners: tuple[tuple[int, ...] | None, ...]


def key(round_: str, kind: str, rank: int | None = None) -> str:
    """Flat below `r/`: deleting keys of a directory would leave folders behind."""
    return f"r/{round_}-{kind}" if rank is None else f"r/{round_}-{kind}-{rank}"


def number_of(round_: str) -> int:
    """The number that a round's id begins with."""
    return int(round_[:_NUMBER])


def describe(failed: Failed) -> str:
    """The text of the error: the same on every process of the round."""
    who = [f"rank {rank}" + (f" with lanes {list(lanes)}" if lanes else "") for rank, lanes in failed.missing]
    return failed.reason + (f"; missing: {', '.join(who)}" if who else "")


# -- the two sides -------------------------------------------------------------------------------------------------
def lead(me: Part, ranks: Ranks, deadline: float, checked: bool = False) -> Steps:
    """Rank 0's side of a round; returns a Departure. `checked`: ask `Check` before a merge is published."""
    others = tuple(r for r in range(len(ranks.owners)) if r != me.rank)
    before = yield Get(ANNOUNCE)
    number = 1 + (number_of(before) if before else 0)
    round_ = f"{number:0{_NUMBER}d}.{me.nonce}"
    yield from sweep(number - 1, merged=False)  # crashed and failed rounds, but not the one before
    yield Put(ANNOUNCE, round_)
    parts, missing, expired, failure = {me.rank: me}, others, False, None
    while missing:
        came = yield GetEach(tuple(key(round_, SLOT, rank) for rank in missing))
        parts = parts | {part.rank: part for part in came if part is not None}
        missing = tuple(rank for rank in missing if rank not in parts)
        if not missing:
            break
        failure = yield Get(key(round_, RESULT))  # a follower gave up, or left for another leader
        said = yield Get(ANNOUNCE)
        if failure is not None:
            break
        if said != round_:
            failure = superseded(said)
            break
        if expired:
            failure = late(me, ranks, parts, missing)
            break
        expired = yield Wait(
            ((key(round_, SLOT, missing[0]), None), (key(round_, RESULT), None), (ANNOUNCE, round_)), deadline
        )
    if not missing:
        yield from sweep(number, merged=True)  # everyone has joined this round: nobody is in an older one
    proposed = failure or merge(round_, me, ranks, parts)
    if checked and isinstance(proposed, Merged):
        why = yield Check(proposed)
        proposed = Failed(why) if why else proposed
    outcome = yield from decide(round_, proposed)
    if isinstance(outcome, Failed):
        return Departure(round_, outcome)
    said = yield Get(ANNOUNCE)
    if said != round_:  # our round may have been decided and swept long ago
        return Departure(round_, superseded(said))
    pending = others
    while pending:
        acks = yield GetEach(tuple(key(round_, ACK, rank) for rank in pending))
        pending = tuple(rank for rank, ack in zip(pending, acks, strict=True) if ack is None)
        if expired or not pending:
            break
        expired = yield Wait(((key(round_, ACK, pending[0]), None),), deadline)
    if not pending:
        yield DeleteEach(tuple(key(round_, ACK, rank) for rank in others))
    return Departure(round_, outcome)  # decided is decided, acknowledged or not


def follow(me: Part, ranks: Ranks, deadline: float) -> Steps:
    """Any other rank's side; returns a Departure."""
    over, why = (
        None,
        (
            f"rank {me.rank} waited for rank 0, which announced no round; has it called checkpoint() as well, and of the same "
            "iterators in the same order?"
        ),
    )
    while True:
        said = yield Get(ANNOUNCE)
        if said is None or said == over or (over and number_of(said) < number_of(over)):  # only ever forward
            if (yield Wait(((ANNOUNCE, said),), deadline)):
                return Departure(None, Failed(why, ((0, ranks.owners[0] or ()),), "timeout"))
            continue
        if (yield Get(key(said, RESULT))) is not None:  # law B: decided before we came
            over, why = said, f"round {said} was decided before rank {me.rank} came, and no other followed"
            continue
        if not (yield Create(key(said, SLOT, me.rank), me)):
            slot = yield Get(key(said, SLOT, me.rank))
            if slot is None or slot.nonce != me.nonce:  # a dead run's, or this rank runs twice
                over, why = said, f"another process joined round {said} as rank {me.rank}, and no other followed"
                continue
        outcome = None
        while outcome is None:
            expired = yield Wait(((key(said, RESULT), None), (ANNOUNCE, said)), deadline)
            outcome = yield Get(key(said, RESULT))
            if outcome is None and expired:
                there = yield List(key(said, SLOT))
                absent = tuple(r for r in range(1, len(ranks.owners)) if key(said, SLOT, r) not in there)
                outcome = yield from decide(said, late(me, ranks, {}, tuple(r for r in absent if r != me.rank)))
            elif outcome is None:
                now = yield Get(ANNOUNCE)
                if now != said:  # law C: never leave a round undecided
                    outcome = yield from decide(said, superseded(now))
        yield Delete(key(said, SLOT, me.rank))
        if isinstance(outcome, Merged):
            if (me.rank, me.nonce) in outcome.parts:
                yield Put(key(said, ACK, me.rank), me.nonce)
                return Departure(said, outcome)
            over, why = said, f"another process joined round {said} as rank {me.rank}, and no other followed"
        elif outcome.kind == "superseded":
            over, why = said, f"rank 0 left round {said}, and no other followed"
        else:
            return Departure(said, outcome)


def shut_down(round_: str, others: tuple[int, ...]) -> Steps:
    """The leader, once nobody will begin a round any more. The announcement goes last: until then, numbers must not begin again."""
    for rank in others:
        if (yield Get(key(round_, SLOT, rank))) is not None:  # has not read the outcome yet, or died
            return
    yield from sweep(number_of(round_), merged=True)
    yield Delete(key(round_, RESULT))
    if (yield Get(ANNOUNCE)) == round_:
        yield Delete(ANNOUNCE)


def decide(round_: str, outcome: Merged | Failed) -> Steps:
    """Law A. What is returned is the round's outcome, ours or not."""
    if (yield Create(key(round_, RESULT), outcome)):
        return outcome
    there = yield Get(key(round_, RESULT))
    return Failed("the round is gone: another process of rank 0 swept it") if there is None else there


def sweep(below: int, merged: bool) -> Steps:
    """Law E. A merge is swept only where nobody can be in its round: to sweep a result is to un-decide it."""
    keys = yield List("r/")
    old = tuple(k for k in keys if number_of(k[2:]) < below)
    results = tuple(k for k in old if k.endswith(RESULT) and not merged)
    there = yield GetEach(results)
    kept = tuple(k for k, value in zip(results, there, strict=True) if isinstance(value, Merged))
    yield DeleteEach(tuple(k for k in old if k not in kept))


# -- decisions -----------------------------------------------------------------------------------------------------
def superseded(said: str | None) -> Failed:
    """Another leader is there."""
    return Failed(f"the leader of round {said} took over: is rank 0 running twice?", kind="superseded")


def late(me: Part, ranks: Ranks, parts: dict[int, Part], missing: tuple[int, ...]) -> Failed:
    """The budget is spent. What is wrong with those who came is said as well."""
    found = [broken(ranks, me, parts[rank]) for rank in sorted(parts)]
    reason = f"{len(missing)} of {len(ranks.owners)} ranks did not report their state in time"
    if not missing:
        reason = f"rank 0 did not decide within the time of rank {me.rank}"
    unknown = sorted(set(range(ranks.lanes)) - {lane for part in parts.values() for lane in part.owned})
    if parts and unknown and any(ranks.owners[rank] is None for rank in missing):
        reason += f", and nobody lanes {unknown}"
    texts = [reason, *(describe(failed) for failed in found if failed is not None)]
    return Failed("; ".join(texts), tuple((r, ranks.owners[r] or ()) for r in missing), "timeout")


def broken(ranks: Ranks, mine: Part, part: Part) -> Failed | None:
    """Law D: why the leader refuses this part, if it does."""
    who, leader = f"rank {part.rank}", f"rank {mine.rank}"
    if part.error:
        return Failed(f"{who}: {part.error}")
    if part.stamp.plan != mine.stamp.plan:
        return Failed(
            f"{who} has another pipeline or other data ({part.stamp.plan}) than {leader} ({mine.stamp.plan}); "
            "compare explain() and the datasets of both"
        )
    if part.stamp.mapping != mine.stamp.mapping:
        return Failed(
            f"{who} maps lanes otherwise ({part.stamp.mapping}) than {leader} ({mine.stamp.mapping}); "
            "every rank needs the same mesh and number of processes, or the same dp_degree"
        )
    if part.stamp.step != mine.stamp.step:
        return Failed(
            f"{who} is at step {part.stamp.step}, {leader} at step {mine.stamp.step}; "
            "every rank must call checkpoint() after the same step"
        )
    owned = ranks.owners[part.rank]
    if owned is not None and owned != part.owned:
        return Failed(f"{who} owns lanes {list(part.owned)}, by the mapping it should own {list(owned)}")
    if lacking := sorted(set(part.owned) - {share.lane for share in part.shares}):
        return Failed(f"{who} reports no state of lanes {lacking}, which it owns", ((part.rank, tuple(lacking)),))
    return None


def merge(round_: str, mine: Part, ranks: Ranks, parts: dict[int, Part]) -> Merged | Failed:
    """Each lane from the lowest rank that owns it; its other producers must have delivered the same of it."""
    for rank in sorted(parts):
        if (failed := broken(ranks, mine, parts[rank])) is not None:
            return failed
    marks: dict[int, tuple[str, int]] = {}
    lanes: dict[int, tuple[int, int, bytes]] = {}
    for rank in sorted(parts):
        for lane, mark, state in parts[rank].shares:
            first, by = marks.setdefault(lane, (mark, rank))
            if first != mark:
                return Failed(f"lane {lane}: rank {by} has delivered {first}, rank {rank} {mark}; it must be the same")
            lanes.setdefault(lane, (lane, rank, state))
    if lacking := sorted(set(range(ranks.lanes)) - set(lanes)):
        return Failed(f"no rank owns lanes {lacking}; every dp_group_id below dp_degree needs a rank")
    nonces = tuple((rank, parts[rank].nonce) for rank in sorted(parts))
    return Merged(round_, mine.stamp, nonces, tuple(lanes[lane] for lane in sorted(lanes)))
