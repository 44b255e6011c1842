"""How good a draft head's guesses are: by position, by rank, by kind of prompt.

  python -m eval.heads --config=configs/heads_smollm2.py --workdir=runs/heads --config.head=FOLDER

Decodes every prompt greedily with the head: what the target accepted at each position of the draft
(of the drafts that got so far), tokens per pass, and, read again with the answer in hand, how often
the target's token was among the head's 1 to 5 best. Leaves
results.json and heads.png in the workdir. No speeds: those are eval.speedup's.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tqdm

import specjax
from eval import chat as chats
from eval import prompts, results
from eval.chat import Chat
from eval.modes import check_head
from specjax.drafters import eagle, eagle_params
from specjax.drafters.eagle import EagleParams
from specjax.heads import EagleConfig, formats
from specjax.models.transformer import output_rows
from train import eagle as training
from train import features

RANKS = 5
ALL = "all"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
      target: a folder, a hub id, or "smollm2", the default model.
      head: the head's folder.
      k: draft tokens a round.
      prompts: a prompt file; "": the built-in set.
      prompts_per_category: the first so many; 0: all.
      max_new_tokens: of each answer.
      batch: prompts decoded at a time.
      seed: of the bootstrap.
    """

    target: str
    head: str
    k: int
    prompts: str
    prompts_per_category: int
    max_new_tokens: int
    batch: int
    seed: int

    def __post_init__(self) -> None:
        results.at_least(1, k=self.k, max_new_tokens=self.max_new_tokens, batch=self.batch)
        results.at_least(0, prompts_per_category=self.prompts_per_category)
        if not self.head:
            raise ValueError(
                "config.head is empty; train a head (docs/training.md) and give its folder, as in "
                "--config.head=runs/eagle3/best"
            )


class Answer(NamedTuple):
    """One prompt, decoded with the head.

    Attributes:
      category: the prompt's.
      tokens: prompt and answer.
      start: the prompt's length.
      rounds: target passes.
      judged: int ``[k]``, drafts that got to each position.
      accepted: int ``[k]``, those that were accepted there.
      hits: int ``[k, RANKS]``, where all earlier ones were right: the target's token was among the
        head's 1, 2, ... best.
      asked: int ``[k]``, how often that could be asked.
    """

    category: str
    tokens: list[int]
    start: int
    rounds: int
    judged: np.ndarray
    accepted: np.ndarray
    hits: np.ndarray
    asked: np.ndarray


def run(config: Mapping[str, Any], workdir: str | pathlib.Path) -> list[str]:
    """Measures a head; prints the table, writes results.json and the chart.

    Raises:
      ValueError: a setting, a prompt file, a model or a head that can't be used.
    """
    s, workdir = results.read(Settings, config), pathlib.Path(workdir)
    head_config, head, ids = formats.load(s.head)
    chat = chats.load(s.target)
    check_head(s.head, head_config, int(ids[-1]), chat.config)
    params = eagle_params(head_config, head, ids, chat.params)
    answers = _decode(s, chat, head_config, params)
    rank = partial(_ranks, chat, head_config, head, params, s.k)
    answers = [rank(a) for a in tqdm.tqdm(answers, desc="ranks", disable=None, leave=False)]
    rows = _rows(s, head_config, answers)
    results.write(workdir, s, rows, [])
    print(results.table([_line(row, s.k) for row in rows]))
    _draw(workdir / "heads.png", rows, s.k, f"{s.head} on {s.target}")
    print(f"results: {workdir / 'results.json'}, {workdir / 'heads.png'}", flush=True)
    return []


def _decode(s: Settings, chat: Chat, config: EagleConfig, params: EagleParams) -> list[Answer]:
    """Decodes all prompts in one compiled program: one buffer for all."""
    chosen = _chosen(s)
    encoded = [chat.encode(prompt.turns[:1]) for prompt in chosen]
    slots = max(map(len, encoded)) + s.max_new_tokens + s.k
    out: list[Answer] = []
    for at in tqdm.trange(0, len(encoded), s.batch, desc="decoding", disable=None, leave=False):
        some = encoded[at : at + s.batch]
        whole = some + [some[-1]] * (s.batch - len(some))  # one shape
        got = specjax.sample(
            chat.target,
            chat.params,
            whole,
            drafter=eagle(config, s.k),
            drafter_params=params,
            max_new_tokens=s.max_new_tokens,
            max_length=-(-slots // 128) * 128,
            eos_ids=chat.eos_ids,
        )
        tokens, lengths, stats = jax.device_get((got.tokens, got.lengths, got.stats))
        for row, prompt in enumerate(some):
            both = [*prompt, *tokens[row, : lengths[row]].tolist()]
            nothing = np.zeros([s.k, RANKS], int), np.zeros([s.k], int)
            counts = int(stats.rounds[row]), stats.judged[row], stats.accepted[row]
            out.append(Answer(chosen[at + row].category, both, len(prompt), *counts, *nothing))
    return out


def _chosen(s: Settings) -> list[prompts.Prompt]:
    seen: dict[str, int] = {}
    out = []
    for prompt in prompts.read(s.prompts or None):
        seen[prompt.category] = seen.get(prompt.category, 0) + 1
        if not s.prompts_per_category or seen[prompt.category] <= s.prompts_per_category:
            out.append(prompt)
    return out


def _ranks(
    chat: Chat, config: EagleConfig, head: Any, params: EagleParams, k: int, answer: Answer
) -> Answer:
    length = -(-len(answer.tokens) // 256) * 256
    pad = length - len(answer.tokens)
    tokens = np.pad(np.array(answer.tokens, np.int32), (0, pad))[None]
    segment = np.pad(np.ones(len(answer.tokens), np.int32), (0, pad))[None]
    mask = (np.arange(length) >= answer.start)[None] & (segment > 0)
    given = {"tokens": tokens, "segment": segment, "position": np.arange(length, dtype=np.int32)}
    given["position"] = given["position"][None]
    hits, asked = _hits(chat.target, config, k, chat.params, head, params.ids, given, mask)
    return answer._replace(hits=np.asarray(hits), asked=np.asarray(asked))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _hits(
    target: Any,
    config: EagleConfig,
    k: int,
    target_params: Any,
    head: Any,
    ids: jax.Array,
    rows: Mapping[str, jax.Array],
    mask: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Reads a document once: int ``[k, RANKS]`` hits among the n best, and how often asked."""
    streams = features.compute(target, (*config.layers, features.FINAL), target_params, rows)
    known = jnp.zeros([target.vocab_size], bool).at[ids].set(True)
    slots = training.slots_of(
        config, target_params["embed"], known, {**rows, "mask": mask}, streams
    )
    matrix = output_rows(target_params, ids)
    alive, hits, asked = jnp.ones(mask.shape, bool), [], []
    for step, one in enumerate(training.unroll(config, head, matrix, slots, k)):
        alive = alive & one.counts
        best = ids[jax.lax.top_k(one.logits, RANKS)[1]]  # [1, T, RANKS]
        right = best == training.shift(rows["tokens"], 2 + step)[..., None]
        within = jnp.cumsum(right, -1) > 0
        hits.append(jnp.sum(within & alive[..., None], (0, 1)))
        asked.append(jnp.sum(alive))
        alive = alive & right[..., 0]
    return jnp.stack(hits), jnp.stack(asked)


def _rows(s: Settings, config: EagleConfig, answers: Sequence[Answer]) -> list[dict[str, Any]]:
    rows = []
    for category in [*dict.fromkeys(a.category for a in answers), ALL]:
        some = [a for a in answers if category in (ALL, a.category)]
        rows.append(_row(s, config, category, some))
    return rows


def _row(s: Settings, config: EagleConfig, category: str, some: Sequence[Answer]) -> dict[str, Any]:
    new = np.array([len(a.tokens) - a.start for a in some])
    rounds = np.array([a.rounds for a in some])
    judged, accepted = (np.array([getattr(a, n) for a in some]) for n in ("judged", "accepted"))
    hits, asked = (sum(getattr(a, n) for a in some) for n in ("hits", "asked"))
    low, high = _bootstrap(new, rounds, s.seed)
    row: dict[str, Any] = {
        "mode": "eagle",
        "drafter": f"EAGLE-{config.version}",
        "verifier": "greedy",
        "category": category,
        "k": s.k,
        "temperature": 0.0,
        "prompts": len(some),
        "new_tokens": int(new.sum()),
        "tokens_per_pass": round(float(new.sum() / rounds.sum()), 4),
        "tokens_per_pass_low": low,
        "tokens_per_pass_high": high,
        "acceptance_rate": _ratio(accepted.sum(), judged.sum()),
    }
    for i in range(s.k):
        low, high = _bootstrap(accepted[:, i], judged[:, i], s.seed)
        row |= {
            f"acceptance_rate_{i + 1}": _ratio(accepted[:, i].sum(), judged[:, i].sum()),
            f"acceptance_rate_{i + 1}_low": low,
            f"acceptance_rate_{i + 1}_high": high,
        }
        row |= {f"top{n + 1}_{i + 1}": _ratio(hits[i, n], asked[i]) for n in range(RANKS)}
    return row


def _bootstrap(part: np.ndarray, whole: np.ndarray, seed: int) -> tuple[float | None, float | None]:
    """A 95% interval of a ratio of totals, over prompts; None for a single prompt."""
    if len(part) < 2 or not whole.sum():
        return None, None
    draws = np.random.default_rng(seed).integers(len(part), size=(2000, len(part)))
    totals = whole[draws].sum(1)
    ratios = part[draws].sum(1)[totals > 0] / totals[totals > 0]
    low, high = np.percentile(ratios, [2.5, 97.5])
    return round(float(low), 4), round(float(high), 4)


def _ratio(part: Any, whole: Any) -> float | None:
    return round(float(part / whole), 4) if whole else None


def _line(row: Mapping[str, Any], k: int) -> dict[str, str]:
    def percent(name: str) -> str:
        return "-" if row[name] is None else f"{100 * row[name]:.0f}"

    low, high = row["tokens_per_pass_low"], row["tokens_per_pass_high"]
    return {
        "category": row["category"].replace("_", " "),
        "n": str(row["prompts"]),
        "tokens\na pass": f"{row['tokens_per_pass']:.2f}",
        "95%": "" if low is None else f"{low:.2f}-{high:.2f}",
        "accepted by\nposition, %": " ".join(percent(f"acceptance_rate_{i + 1}") for i in range(k)),
        "first token among the\n1 2 3 4 5 best, %": " ".join(
            percent(f"top{n + 1}_1") for n in range(RANKS)
        ),
    }


def _draw(path: pathlib.Path, rows: Sequence[Mapping[str, Any]], k: int, title: str) -> None:
    """Acceptance by position, a line a category; the overall one with its interval."""
    figure = results.figure((7.5, 4.2))
    axes = figure.subplots()
    places = np.arange(1, k + 1)

    def series(row: Mapping[str, Any], suffix: str = "") -> list[float]:
        values = (row[f"acceptance_rate_{i}{suffix}"] for i in places)
        return [np.nan if value is None else value for value in values]

    for row in rows[:-1]:
        axes.plot(places, series(row), color="#999999", linewidth=1)
        axes.annotate(row["category"], (k, series(row)[-1]), fontsize=7, color="#666666")
    total = rows[-1]
    axes.plot(places, series(total), color="#0072b2", linewidth=2.5, label="all prompts")
    axes.fill_between(
        places, series(total, "_low"), series(total, "_high"), alpha=0.2, color="#0072b2"
    )
    axes.set_xticks(places)
    axes.set_ylim(0, 1)
    axes.set_xlabel("position in the draft")
    axes.set_ylabel("accepted, of those that got there")
    axes.set_title(f"{title}: {total['tokens_per_pass']:.2f} tokens a pass", fontsize=10)
    axes.legend(frameon=False)
    results.save_figure(figure, path)


def main() -> None:
    """The command."""
    results.main(run)


if __name__ == "__main__":
    main()
