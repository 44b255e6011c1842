"""What modes are made of: a target, a draft model, heads and a corpus table, loaded and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from eval import chat as chats
from eval.chat import Chat
from specjax.draft import Drafter
from specjax.drafters import (
    CorpusTable,
    DraftModelParams,
    check_same_tokenizer,
    corpus_table,
    eagle,
    eagle_params,
    medusa,
    medusa_params,
)
from specjax.heads import EagleConfig, MedusaConfig, formats
from specjax.models import ModelConfig, fingerprint, students
from specjax.target import Target

if TYPE_CHECKING:
    from eval.settings import Settings  # which knows the names of HEADS


class Head(NamedTuple):
    """A head as ``heads.formats.load`` gives it.

    Attributes:
      config: what it is made of.
      weights: its parameters.
      ids: int32 ``[Vd]``, its draft vocabulary.
    """

    config: formats.HeadConfig
    weights: Any
    ids: Any

    @property
    def mode(self) -> str:
        """Its name in ``HEADS``."""
        return next(name for name, kind in HEADS.items() if isinstance(self.config, kind.config))

    @property
    def default_k(self) -> int:
        """Draft tokens a round where nobody says how many."""
        heads = self.config.num_heads if isinstance(self.config, MedusaConfig) else 3
        return min(3, heads)

    def params(self, target_params: Any) -> Any:
        """Its drafter's parameters."""
        return HEADS[self.mode].params(self.config, self.weights, self.ids, target_params)

    def drafter(self, k: int, **thresholds: float) -> Drafter:
        """The drafter of k tokens a round."""
        return HEADS[self.mode].drafter(self.config, k, **thresholds)


class HeadKind(NamedTuple):
    """A kind of head: the class of its configuration, its drafter, and what that takes."""

    config: type
    drafter: Callable[..., Drafter]
    params: Callable[[Any, Any, Any, Any], Any]


# Each is a mode, and has settings of that name.
HEADS = {
    "eagle": HeadKind(EagleConfig, eagle, eagle_params),
    "medusa": HeadKind(MedusaConfig, medusa, medusa_params),
}


class Models(NamedTuple):
    """What a run's modes are made of.

    Attributes:
      target: the target.
      draft: the draft model and its parameters; None: a copy of the target.
      heads: the heads that modes ask for, by their names in ``HEADS``.
      corpus: the corpus table.
      prepared: parameters on the device, by mode, for all the drafters that are made of them.
    """

    target: Chat
    draft: tuple[Target, Any] | None = None
    heads: Mapping[str, Head] = {}
    corpus: CorpusTable | None = None
    prepared: dict[str, Any] | None = None

    def params(self, name: str, make: Callable[[], Any]) -> Any:
        """What ``make`` gives, made once."""
        if self.prepared is None:
            return make()
        if name not in self.prepared:
            self.prepared[name] = make()
        return self.prepared[name]


def load(settings: Settings, dtype: Any) -> Models:
    """Loads what a run's modes need.

    Args:
      settings: the run's.
      dtype: of weights.

    Raises:
      ValueError: a model or a head that can't be used, or that doesn't fit the target; names it.
    """
    target = chats.load(settings.target, dtype)
    draft = None
    if settings.draft and "draft_model" in settings.drafting:
        draft = load_draft(settings.draft, target, dtype)
    heads = {}
    for name in HEADS:
        if name in settings.drafting:
            folder = getattr(settings, name).folder
            heads[name] = head = load_head(folder, target.config)
            if head.mode != name:
                raise ValueError(
                    f"config.{name}.folder={folder!r} holds a head of another kind: give it as "
                    f"config.{head.mode}.folder, and name the mode {head.mode!r}"
                )
    table = None
    if "corpus" in settings.drafting:
        table = load_corpus(settings.corpus.folder, target)
    return Models(target, draft, heads, table, prepared={})


def load_corpus(folder: str, target: Chat) -> CorpusTable:
    """A corpus table of the target's tokenizer.

    Raises:
      ValueError: it can't be used, or is of another tokenizer; says why.
    """
    tokenizer = fingerprint.tokenizer(chats.find(target.name))
    return corpus_table.load(folder, vocab_size=target.target.vocab_size, tokenizer=tokenizer)


def load_draft(name: str, target: Chat, dtype: Any = None) -> tuple[Target, Any]:
    """A draft model, and its parameters as ``draft_model`` takes them.

    Args:
      name: a folder or a hub id of a whole model, or the folder of a distilled one
        (``specjax.models.students``), which borrows of the target.
      target: the target.
      dtype: of a whole model's weights; None: the device's.

    Raises:
      ValueError: it can't be used, or doesn't belong to the target; says why.
    """
    if students.is_student(name):
        model, params, ids = students.load(
            name, target.params, target.config, target_folder=chats.find(target.name)
        )
        return model, DraftModelParams(params, ids)
    draft = chats.load(name, dtype)
    check_pair(target, draft)
    return draft.target, draft.params


def check_pair(target: Chat, draft: Chat) -> None:
    """Checks that a draft model speaks the target's tokens.

    Raises:
      ValueError: it does not; names the first id that differs.
    """
    check_same_tokenizer(target.tokenizer.get_vocab(), draft.tokenizer.get_vocab())


def load_head(folder: str, target: ModelConfig) -> Head:
    """Loads a head, of whichever kind it is.

    Raises:
      ValueError: one that can't be used, or that doesn't fit the target; names it.
    """
    head = Head(*formats.load(folder))
    check_head(folder, head.config, int(head.ids[-1]), target)
    return head


def check_head(folder: str, head: formats.HeadConfig, last_id: int, target: ModelConfig) -> None:
    """Checks that a head was trained for a target of this shape.

    Args:
      folder: the head's, for the message.
      head: its configuration.
      last_id: the largest id it drafts.
      target: the target's configuration.

    Raises:
      ValueError: it was not.
    """
    if head.target_width != target.width:
        problem = f"reads streams of width {head.target_width}, and the target's are {target.width}"
    elif max(head.layers) > target.num_layers:
        problem = f"reads layer {max(head.layers)}, and the target has {target.num_layers}"
    elif last_id >= target.vocab_size:
        problem = f"drafts token {last_id}, and the target has {target.vocab_size} of them"
    else:
        return
    raise ValueError(f"{folder} holds a head of another model: it {problem}")
