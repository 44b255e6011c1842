"""How good the guesses of a draft head or draft model are: by position, rank and kind of prompt.

  python -m eval.heads --config=configs/heads_smollm2.py --workdir=runs/heads --config.head=FOLDER

Decodes every prompt greedily with the head (EAGLE, Medusa): what the target accepted at each
position of the draft (of the drafts that got so far), tokens per pass, and, read again with the
answer in hand, how often the target's token was among the head's 1 to 5 best: where all guesses
before were right, and anywhere. The folder may hold a draft model distilled from the target too: of
it the ranks stay empty. Leaves results.json and heads.png in the workdir. No speeds: those are
eval.speedup's.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import tqdm

import specjax
from eval import chat as chats
from eval import prompts, ranks, results
from eval.chat import Chat
from eval.models import Head, load_draft, load_head
from eval.ranks import RANKS
from specjax.draft import Drafter
from specjax.drafters import draft_model
from specjax.models import students

ALL = "all"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
      target: a folder, a hub id, or "smollm2", the default model.
      head: the head's folder, or a distilled draft model's.
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
    """One prompt, decoded.

    Attributes:
      category: the prompt's.
      tokens: prompt and answer.
      start: the prompt's length.
      rounds: target passes.
      judged: int ``[k]``, drafts that got to each position.
      accepted: int ``[k]``, those that were accepted there.
      hits: int ``[2, k, RANKS]``, see ``ranks.count``; 0 where nothing was asked.
      asked: int ``[2, k]``, likewise.
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
    """Measures a head or a draft model; prints the table, writes results.json and the chart.

    Raises:
      ValueError: a setting, a prompt file, a model or a head that can't be used.
    """
    s, workdir = results.read(Settings, config), pathlib.Path(workdir)
    chat = chats.load(s.target)
    mode, drafter, params, head = _drafting(s, chat)
    answers = _decode(s, chat, drafter, params)
    if head:
        for number, a in enumerate(tqdm.tqdm(answers, desc="ranks", disable=None, leave=False)):
            hits, asked = ranks.count(chat, head, s.k, a.tokens, a.start)
            answers[number] = a._replace(hits=hits, asked=asked)
    about = {"mode": mode, "drafter": drafter.name}
    rows = [about | row for row in _rows(s, answers)]
    results.write(workdir, s, rows, [])
    first = [_within(row, "_1") if head else "" for row in rows]
    print(results.table([_line(row, s.k, x) for row, x in zip(rows, first, strict=True)]))
    if head:
        print(f"\n{results.table([_rank_line(rows[-1], i + 1) for i in range(s.k)])}")
    _draw(workdir / "heads.png", rows, s.k, f"{s.head} on {s.target}")
    print(f"results: {workdir / 'results.json'}, {workdir / 'heads.png'}", flush=True)
    return []


def _drafting(s: Settings, chat: Chat) -> tuple[str, Drafter, Any, Head | None]:
    """The mode, the drafter and its parameters, and the head; None: it is a draft model."""
    if students.is_student(s.head):
        model, params = load_draft(s.head, chat)
        return "draft_model", draft_model(model, s.k), params, None
    head = load_head(s.head, chat.config)
    return head.mode, head.drafter(s.k), head.params(chat.params), head


def _decode(s: Settings, chat: Chat, drafter: Drafter, params: Any) -> list[Answer]:
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
            drafter=drafter,
            drafter_params=params,
            max_new_tokens=s.max_new_tokens,
            max_length=-(-slots // 128) * 128,
            eos_ids=chat.eos_ids,
        )
        tokens, lengths, stats = jax.device_get((got.tokens, got.lengths, got.stats))
        for row, prompt in enumerate(some):
            both = [*prompt, *tokens[row, : lengths[row]].tolist()]
            nothing = np.zeros([2, s.k, RANKS], int), np.zeros([2, s.k], int)
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


def _rows(s: Settings, answers: Sequence[Answer]) -> list[dict[str, Any]]:
    rows = []
    for category in [*dict.fromkeys(a.category for a in answers), ALL]:
        some = [a for a in answers if category in (ALL, a.category)]
        rows.append(_row(s, category, some))
    return rows


def _row(s: Settings, category: str, some: Sequence[Answer]) -> dict[str, Any]:
    new = np.array([len(a.tokens) - a.start for a in some])
    rounds = np.array([a.rounds for a in some])
    judged, accepted = (np.array([getattr(a, n) for a in some]) for n in ("judged", "accepted"))
    hits, asked = (sum(getattr(a, n) for a in some) for n in ("hits", "asked"))
    low, high = _bootstrap(new, rounds, s.seed)
    row: dict[str, Any] = {
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
        for where, suffix in enumerate(("", "_anywhere")):
            row |= {
                f"top{n + 1}_{i + 1}{suffix}": _ratio(hits[where, i, n], asked[where, i])
                for n in range(RANKS)
            }
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


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}"


def _line(row: Mapping[str, Any], k: int, first: str) -> dict[str, str]:
    low, high = row["tokens_per_pass_low"], row["tokens_per_pass_high"]
    line = {
        "category": row["category"].replace("_", " "),
        "n": str(row["prompts"]),
        "tokens\na pass": f"{row['tokens_per_pass']:.2f}",
        "95%": "" if low is None else f"{low:.2f}-{high:.2f}",
        "accepted by\nposition, %": " ".join(
            _percent(row[f"acceptance_rate_{i + 1}"]) for i in range(k)
        ),
    }
    return line | ({"first token among the\n1 2 3 4 5 best, %": first} if first else {})


def _rank_line(row: Mapping[str, Any], position: int) -> dict[str, str]:
    return {
        "position": str(position),
        "among the 1 2 3 4 5 best, %:\nafter right guesses": _within(row, f"_{position}"),
        "\nanywhere": _within(row, f"_{position}_anywhere"),
    }


def _within(row: Mapping[str, Any], suffix: str) -> str:
    return " ".join(_percent(row[f"top{n + 1}{suffix}"]) for n in range(RANKS))


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
