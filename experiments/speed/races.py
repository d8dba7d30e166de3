"""Every race: who runs, what is measured, and the bar. Descriptions only; contest.py runs them, summary.py sums up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from experiments.speed.contest import Contestant
from experiments.speed.shapes import GPT2_WINDOWS, NANO, SIX, TOY, WINDOWS, Shape, train_operations
from experiments.speed.summary import Measure, growth, ratio, slope, value


@dataclass(frozen=True)
class Ours:
    """A Python that has JAX and this package."""

    label: str
    """As in `jax 0.10.2`."""
    python: str
    version: tuple[int, ...]

    def runs(
        self, role: str, suffix: str = "", fresh: bool = False, cache: Any = "empty", **settings: Any
    ) -> Contestant:
        name = f"ours, {self.label}{suffix}"
        return Contestant(name, self.python, "worker_jax", {"role": role, **settings}, fresh, cache)


@dataclass(frozen=True)
class Field:
    """Who is there to race, and at which size."""

    ours: tuple[Ours, ...]
    peer: str | None
    """A Python that has torch and transformers."""
    checkout: str | None
    """A nanoGPT checkout, whose GPT class then takes the place of our torch lines."""
    text: Path
    """What the races that run the whole of `train` train on."""
    quick: bool = False

    def size(self, shape: Shape, **toy: Any) -> Shape:
        """The shape, or a toy with what is told of it."""
        return TOY.with_(**toy) if self.quick else shape

    def many(self, number: int) -> int:
        return min(number, 2) if self.quick else number

    def theirs(self, name: str, role: str, fresh: bool = False, **settings: Any) -> list[Contestant]:
        """A contestant of the peer's Python, or none where there is no peer."""
        settings = {"role": role, "checkout": self.checkout, **settings}
        return [Contestant(name, self.peer, "worker_torch", settings, fresh)] if self.peer else []


@dataclass(frozen=True)
class Race:
    """What is raced and what is made of it."""

    title: str
    contestants: list[Contestant]
    measures: list[Measure]
    rounds: int = 99
    """At most this many: for races that are slow or do not vary."""
    note: str = ""
    """How to read it."""


def pairs(ours: list[Contestant], peers: list[Contestant], of: str, bars: dict[str, dict[str, float]]) -> list[Measure]:
    """The ratio of each of ours to each peer, with the bar that goes with the peer's name, if any."""
    return [ratio(f"{a.name} / {b.name}", a.name, b.name, of, **bars.get(b.name, {})) for a in ours for b in peers]


EAGER, COMPILED, FUSED, HF, LENS = (
    "PyTorch eager", "torch.compile", "PyTorch eager, fused AdamW", "Hugging Face generate", "TransformerLens"
)  # fmt: skip


def train_nano(field: Field) -> Race:
    work = {"shape": asdict(field.size(NANO)), "steps": field.many(50), "warm": field.many(10)}
    ours = [one.runs("train", **work) for one in field.ours]
    kinds: dict[str, dict[str, Any]] = {EAGER: {}, COMPILED: {"compile": True}, FUSED: {"fused": True}}
    peers = [c for name, kind in kinds.items() for c in field.theirs(name, "train", **work, **kind)]
    bars = {EAGER: {"at_least": 1.25, "aim": 2.0}, COMPILED: {"at_least": 1.15, "aim": 1.6}}
    return Race(
        "Training, 4 layers of 128, T=64, B=12, float32: tokens/s", [*ours, *peers],
        pairs(ours, peers, "tokens_per_second", bars),
        note="The fused update is not what nanoGPT takes on a CPU; it is shown because it is there to be had.",
    )  # fmt: skip


def train_six(field: Field) -> Race:
    work = {"shape": asdict(field.size(SIX)), "steps": field.many(3), "warm": field.many(2)}
    ours, peers = [one.runs("train", **work) for one in field.ours], field.theirs(EAGER, "train", **work)
    bars = {EAGER: {"at_least": 1.0, "aim": 1.3}}
    measures = pairs(ours, peers, "tokens_per_second", bars)
    return Race("Training, 6 layers of 384, T=256, B=16, float32: tokens/s", [*ours, *peers], measures)


def train_six_bf16(field: Field) -> Race:
    work = {"shape": asdict(field.size(SIX)), "steps": field.many(3), "warm": field.many(2), "dtype": "bfloat16"}
    peers = field.theirs(EAGER, "train", **work)
    ours = [one.runs("train", **work) for one in field.ours]
    barred = {EAGER: {"at_least": 0.7, "aim": 1.0}}
    measures = [
        measure
        for one, contestant in zip(field.ours, ours, strict=True)
        for measure in pairs([contestant], peers, "tokens_per_second", barred if one.version >= (0, 12) else {})
    ]
    return Race(
        "Training, 6 layers of 384, T=256, B=16, bfloat16: tokens/s", [*ours, *peers], measures,
        note="The bar is for jax 0.12 and newer: older ones have no fast bfloat16 product on a CPU.",
    )  # fmt: skip


def _decoding(field: Field, rows: int) -> dict[str, Any]:
    shape = field.size(NANO)
    return {
        "shape": asdict(shape),
        "batch": rows,
        "tokens": shape.block_size - 1,
        "calls": field.many(10 if rows == 1 else 2),
    }


DECODING_NOTE = (
    "Each call writes 63 tokens from one, the most that Hugging Face's model has positions for; "
    "temperature 0.8, no filters, caches on."
)


def decode(field: Field) -> Race:
    ours = [one.runs("decode", **_decoding(field, 1)) for one in field.ours]
    peers = field.theirs(HF, "decode", **_decoding(field, 1))
    measures = pairs(ours, peers, "tokens_per_second", {HF: {"at_least": 3.0, "aim": 8.0}})
    return Race("Decoding, 0.8 M parameters, batch 1: new tokens/s", [*ours, *peers], measures, note=DECODING_NOTE)


def decode_batch(field: Field) -> Race:
    contestants, measures = [], []
    for one in field.ours:
        alone, batch = (one.runs("decode", f", batch {n}", **_decoding(field, n)) for n in (1, 32))
        contestants += [alone, batch]
        measures += pairs([batch], [alone], "tokens_per_second", {alone.name: {"at_least": 10.0, "aim": 20.0}})
    peers = field.theirs(f"{HF}, batch 32", "decode", **_decoding(field, 32))
    measures += pairs([c for c in contestants if c.settings["batch"] == 32], peers, "tokens_per_second", {})
    return Race("Decoding, batch 32: new tokens/s", [*contestants, *peers], measures, note=DECODING_NOTE)


def decode_position(field: Field) -> Race:
    shape = NANO.with_(block_size=1024) if not field.quick else TOY.with_(block_size=64)
    late = shape.block_size - 24
    contestants, measures = [], []
    for one in field.ours:
        work = {"shape": asdict(shape), "calls": 20 if not field.quick else 2}
        near, far = (one.runs("decode-position", f", position {p}", position=p, **work) for p in (10, late))
        contestants += [near, far]
        measures.append(ratio(f"{far.name} / {near.name}", far.name, near.name, "ms_per_step", at_most=1.5, aim=1.2))
    return Race(
        "Decoding in a context of 1,024: time of a token late and early", contestants, measures,
        note="A step is a token: the median time of a chunk of 8 in a stream, after the prompt has been read.",
    )  # fmt: skip


def _sweep(field: Field, shape: Shape, bars: dict[str, float], rounds: int) -> Race:
    work = {"shape": asdict(field.size(shape))}
    peers, contestants, measures = field.theirs(LENS, "sweep", **work), [], []
    for one in field.ours:
        swept, plain = one.runs("sweep", **work), one.runs("sweep", ", one plain forward pass", plain=True, **work)
        contestants += [swept, plain]
        measures += pairs([swept], peers, "tokens_per_second", {LENS: bars})
        title = f"{swept.name}: time for a head over a plain forward pass"
        measures.append(ratio(title, swept.name, plain.name, "ms_per_step", at_most=0.7))
    heads = f"{shape.n_layer} layers x {shape.n_head} heads, {shape.n_embd} wide, {shape.vocab_size:,} tokens"
    return Race(
        f"Every head zeroed in turn, {heads}, {shape.batch_size} windows of {shape.block_size}: tokens/s",
        [*contestants, *peers], measures, rounds,
        note="A step is a head. The peer runs a hooked forward pass for each; ours is one compiled program.",
    )  # fmt: skip


def sweep(field: Field) -> Race:
    return _sweep(field, WINDOWS, {"at_least": 4.0, "aim": 6.0}, 7)


def sweep_gpt2(field: Field) -> Race:
    return _sweep(field, GPT2_WINDOWS, {"at_least": 1.5, "aim": 2.5}, 1)


def start(field: Field) -> Race:
    toy = ["--n-layer", "1", "--n-embd", "16", "--block-size", "16"] if field.quick else []
    arguments = ["--preset", "nano-cpu", "--data", str(field.text), *toy]
    limits: dict[Any, tuple[str, float, float]] = {"empty": ("first start", 8, 5), "filled": ("later start", 4, 3)}
    contestants, measures = [], []
    for one in field.ours:
        for cache, (words, bar, aim) in limits.items():
            contestant = one.runs("start", f", {words}", True, cache, arguments=arguments)
            contestants.append(contestant)
            measures.append(value(contestant.name, contestant.name, "seconds", at_most=float(bar), aim=float(aim)))
    return Race(
        "From the start of `tinygpt train` to its first step done", contestants, measures, rounds=5,
        note="The real command, with the text of a tiny Shakespeare's size read and encoded, stopped when it tells its "
        "display of the first step. First start: the package's cache directory is empty; later: as an earlier start "
        "left it. Python and libraries are in the system's file cache in both.",
    )  # fmt: skip


def memory(field: Field) -> Race:
    contestants: list[Contestant] = []
    measures: list[Measure] = []
    for title, shape, steps in (("4 layers of 128", field.size(NANO), 20), ("6 layers of 384", field.size(SIX), 2)):
        work = {"shape": asdict(shape), "steps": field.many(steps)}
        peers = field.theirs(f"{EAGER}, {title}", "memory", fresh=True, **work)
        first = [one.runs("memory", f", {title}, compiling", True, **work) for one in field.ours]
        later = [one.runs("memory", f", {title}, from the cache", True, "filled", **work) for one in field.ours]
        contestants += [*first, *later, *peers]
        barred = {c.name: {"at_most": 1.0, "aim": 0.7} for c in peers}
        measures += [*pairs(first, peers, "mebibytes", barred), *pairs(later, peers, "mebibytes", {})]
    return Race(
        "Most memory while training, above what the imports take", contestants, measures, rounds=3,
        note="Resident memory: its high-water mark less what there was after imports and the backend's start. The bar "
        "is for a first run, which compiles; with a filled compilation cache it is shown beside.",
    )  # fmt: skip


def growth_race(field: Field) -> Race:
    base = field.size(NANO)
    V, T = (4096, 256) if not field.quick else (130, 32)
    larger = {f"T={T}": base.with_(block_size=T), f"V={V}": base.with_(vocab_size=V)}
    deeper = {f"L={L}": base.with_(n_layer=L) for L in (2, 4, 8, 16)}
    contestants, measures = [], []
    for one in field.ours:
        by_name = {
            name: one.runs("train", f", {name}", shape=asdict(shape), steps=field.many(10), warm=2)
            for name, shape in {**deeper, **larger}.items()
        }
        contestants += by_name.values()
        by_depth = {shape.n_layer: by_name[name].name for name, shape in deeper.items()}
        measures.append(
            slope(f"ours, {one.label}: log time against log L", by_depth, at_least=0.9, at_most=1.1, aim=None)
        )
        for name, shape in larger.items():
            operations = train_operations(shape) / train_operations(base)
            title = f"ours, {one.label}: time by operations, {name} against {'T=64' if name[0] == 'T' else 'V=65'}"
            small, large = by_name[f"L={base.n_layer}"].name, by_name[name].name
            measures.append(growth(title, small, large, operations, at_least=0.8, at_most=1.2))
    return Race(
        "How a step's time grows", contestants, measures, rounds=5,
        note="Operations: B T (6 (12 L C² + V C) + 12 L C T), as written in shapes.py. A growth of 1 means that time "
        "grows as they do.",
    )  # fmt: skip


def recompile(field: Field) -> Race:
    training = {"steps": 11, "warmup_steps": 3, "eval_every": 4, "steps_per_dispatch": 2, "checkpoint_every": 8}
    contestants, measures = [], []
    for one in field.ours:
        kinds = {"": 0} if field.quick else {"": 0, ", sampling too": 8}
        for words, sampling in kinds.items():
            work = {"shape": asdict(field.size(NANO)), "text": str(field.text)}
            settings = {**work, "train": {**training, "sample_every": sampling}}
            contestants.append(one.runs("recompile", words, fresh=True, **settings))
        name = contestants[-len(kinds)].name
        measures.append(value(name, name, "count", at_most=0.0, aim=0.0))
    return Race(
        "Programs compiled after the second step of a run", contestants, measures, rounds=1,
        note="Eleven steps at a changing learning rate, a validation every four, the last call and the last "
        "validation batch shorter than the others.",
    )  # fmt: skip


RACES: dict[str, Callable[[Field], Race]] = {
    "train-nano": train_nano,
    "train-six": train_six,
    "train-six-bf16": train_six_bf16,
    "decode": decode,
    "decode-batch": decode_batch,
    "decode-position": decode_position,
    "sweep": sweep,
    "sweep-gpt2": sweep_gpt2,
    "start": start,
    "memory": memory,
    "growth": growth_race,
    "recompile": recompile,
}


def chosen(names: list[str], field: Field) -> Iterator[tuple[str, Race]]:
    """The races of these names, in the order above."""
    for name, make in RACES.items():
        if name in names:
            race = make(field)
            yield name, replace(race, rounds=1 if race.rounds < 6 else 2) if field.quick else race
