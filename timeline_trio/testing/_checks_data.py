"""
Checks of what a store must keep as it is: identities, text, numbers and what it does not know.
"""

from __future__ import annotations

from typing import Final

import msgspec

from .._model._codec import decode_stage
from .._model._document import Update
from .._model._json import encode_attributes
from .._model._values import NO_ACTOR, Actor, Finish, Start, Status
from ._trial import SECOND, Trial, expect, promise, stage, stages

NUMBERS: Final = (
    '{"a":9007199254740993,"b":9223372036854775807,"c":18446744073709551615,"d":18446744073709551617,'
    '"e":1000000000000000000000000000000,"f":-9223372036854775809,"g":0.1,"h":1,"i":1.0,"j":-0.0,"k":1.10,'
    '"l":3.14159265358979323846264338327950288,"m":1E+400}'
)

TEXTS: Final = (
    "plain",
    "\0",
    "\x01\x1f\x7f",
    " padded ",
    "a \"quoted\" \\ back\\slash ' '' `tick`",
    "line\r\nbreak\ttab\u2028\u2029",
    "100% %s %(x)s %% ? :x $1 {x} ${x}",
    "'; DROP TABLE timelines; --",
    "a') ; DROP TABLE timelines;-- ",
    "x' OR 1=1 -- %s %(y)s",
    "\N{GRINNING FACE}\N{FAMILY}\u200d\U0010ffff\ufffe\ufeff",
    "\u6570\u636e\u52a0\u8f7d",
    "caf\xe9 cafe\u0301 \u202eabc",
    "<script>alert(1)</script>&amp;",
    "null",
    "x" * 10_000,
)

_MANY: Final = 3_000

OPIDS: Final = (
    *("Op", "op", "OP", "\xf6p", "o\u0308p", "stra\xdfe", "strasse", "\u0130", "i", "\uff21", "A"),
    *(
        "'; DROP TABLE timelines; --",
        "x' OR 1=1 -- %s %(y)s",
        "%",
        "_",
        "a%",
        "a_",
        "\\",
        "\\\\",
        '"',
        "`",
        "?1",
    ),
    *("a b", "a  b", "a\xadb", "a\u200bb", "1", "01", "1.0", "null", "\N{GRINNING FACE}" * 191, "x" * 191),
)


@promise("Stages of one id by no actor, by an id, by another id, and by a name equal to an id are four stages.")
async def _actors_are_told_apart(trial: Trial) -> None:
    actors = (NO_ACTOR, Actor(id="1"), Actor(id="2"), Actor(name="1"))
    for number, actor in enumerate(actors):
        await trial.store.merge("op", stages(stage("s", actor=actor, at=number)))
    document = await trial.document("op")
    expect(
        document.stages == {("s", a.key): stage("s", actor=a, at=number) for number, a in enumerate(actors)},
        "all four are kept, each with its own content",
    )
    await trial.store.merge("op", stages(stage("s", actor=Actor("1", "label"), at=1)))
    document = await trial.document("op")
    expect(len(document.stages) == len(actors), "a label makes no other actor")
    expect(document.stages["s", "id:1"].actor.name == "label", "the last accepted label holds")


@promise("Operations whose ids differ in case, in accents, in Unicode's composition or in wildcards are different.")
async def _opids_are_told_apart(trial: Trial) -> None:
    for opid in OPIDS:
        await trial.store.merge(opid, stages(stage(opid)))
    for opid in OPIDS:
        known = await trial.known(opid)
        expect(known.document.opid == opid, f"the operation {opid!r} is read by its id")
        expect(set(known.document.stages) == {(opid, "")}, f"the operation {opid!r} has its own stages only")
        expect(known.revision.version == 1, f"the operation {opid!r} was written once")
    found = sorted(answer.opid for answer in await trial.store.mget(OPIDS))
    expect(found == sorted(OPIDS), "mget returns all of them")
    expect(len(await trial.store.latest(-(10**18), 100)) == len(OPIDS), "latest returns all of them")


@promise("Integers of any size and long decimals come back digit by digit.")
async def _numbers_keep_their_digits(trial: Trial) -> None:
    numbers = msgspec.structs.replace(stage("s"), attributes_json=NUMBERS)
    await trial.store.merge("op", Update(start=Start(name="n", at=1, attributes_json=NUMBERS), stages=(numbers,)))
    document = await trial.document("op")
    expect(document.stages["s", ""].attributes_json == NUMBERS, "a stage's numbers are the same")
    expect(document.start is not None and document.start.attributes_json == NUMBERS, "an operation's are, too")


@promise("Times come back to the nanosecond, from the year 1 to the year 9999.")
async def _times_are_exact(trial: Trial) -> None:
    await trial.store.merge("op", stages(stage("s")))
    times = (-62_135_596_800 * SECOND + 1, -1, 0, 1, 1_767_225_600 * SECOND, 253_402_300_800 * SECOND - 1)
    for number, at in enumerate(times):
        timed = msgspec.structs.replace(stage("s"), started_at=at, finished_at=times[-1 - number], elapsed_ns=2**62)
        await trial.store.merge("op", Update(start=Start(name="n", at=at), stages=(timed,)))
        document = await trial.document("op")
        expect(document.started_at == at, "an operation's time is the same")
        expect(document.stages["s", ""] == timed, "a stage's times are the same")


@promise("Every text that JSON can hold comes back the same, in names, errors, codes, keys and values.")
async def _texts_come_back(trial: Trial) -> None:
    await trial.store.merge("op", stages(stage("s")))
    for number, text in enumerate(TEXTS):
        attributes = encode_attributes({text: [text, {text: text}]})
        texts = msgspec.structs.replace(
            stage(text, text, actor=Actor(text, text), error=text),
            parent_id=f"{text}!",
            code=text,
            attributes_json=attributes,
        )
        start = Start(name=text, at=1, attributes_json=attributes)
        finish = Finish(at=2, status=Status.FAILED, error=text)
        opid = f"op-{number}"
        await trial.store.merge(opid, Update(start=start, finish=finish, stages=(texts,)))
        document = await trial.document(opid)
        expect(document.stages == {texts.key: texts}, f"the stage with the text {text[:40]!r} is the same")
        expect((document.start, document.finish) == (start, finish), f"so are the boundaries with {text[:40]!r}")


@promise("An operation of several thousand stages is kept, and more can be added.")
async def _large_operation_is_kept(trial: Trial) -> None:
    many = stages(*(stage(f"stage-{number}", "a name of some length " * 4, at=number) for number in range(_MANY)))
    await trial.store.merge("op", many)
    await trial.store.merge("op", stages(stage("one more")))
    expect(len((await trial.document("op")).stages) == _MANY + 1, "all stages are there")


@promise("Members of a stage that a newer version wrote are kept and given back.")
async def _unknown_members_survive(trial: Trial) -> None:
    text = '{"id":"s","name":"n","started_at":"2026-01-01T00:00:00Z","status":"running","new":{"x":[1,1.0]}}'
    newer = decode_stage(text)
    await trial.store.merge("op", stages(newer))
    await trial.store.merge("op", stages(stage("t")))
    expect((await trial.document("op")).stages["s", ""] == newer, "the stage is the same, with its new member")


CHECKS: Final = (
    _actors_are_told_apart,
    _opids_are_told_apart,
    _numbers_keep_their_digits,
    _times_are_exact,
    _texts_come_back,
    _large_operation_is_kept,
    _unknown_members_survive,
)
