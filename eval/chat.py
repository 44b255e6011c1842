"""A chat model as the evaluations use it: target, parameters, tokenizer and the ids that end it."""

from __future__ import annotations

import concurrent.futures
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from specjax import Target
from specjax.models import ModelConfig, loading, tokenizer, transformer_target

BUILTIN_MODEL = "smollm2"


class Chat(NamedTuple):
    """A loaded chat model.

    Attributes:
      name: what it was asked for by.
      target: the model.
      params: its parameters.
      config: what it is made of.
      tokenizer: a transformers tokenizer with a chat template.
      eos_ids: ids that end an answer.
    """

    name: str
    target: Target
    params: Any
    config: ModelConfig
    tokenizer: Any
    eos_ids: tuple[int, ...]

    @property
    def dtype(self) -> Any:
        """Of the weights (the matrices), and so of the caches."""
        return max(jax.tree.leaves(self.params), key=lambda leaf: leaf.size).dtype

    def encode(self, messages: Sequence[str]) -> list[int]:
        """The prompt of a chat: the messages are the user's and the model's in turn, user first."""
        roles = ("user", "assistant")
        chat = [{"role": roles[i % 2], "content": text} for i, text in enumerate(messages)]
        import jinja2  # as late as transformers does

        try:
            encoded = self.tokenizer.apply_chat_template(chat, add_generation_prompt=True)
        except jinja2.TemplateError as error:
            raise ValueError(
                f"the chat template of {self.name} refuses the messages ({error}); take another "
                "model, or correct the template"
            ) from error
        return list(encoded["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """An answer's text, without the ids that end it."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)


def find(name: str, files: Sequence[str] | None = None) -> pathlib.Path:
    """The local folder of a model; the default model and hub ids are downloaded if they must be.

    Args:
      name: a folder, a hub id, or "smollm2", the default model.
      files: of a hub id, download these alone.
    """
    if name == BUILTIN_MODEL:
        from scripts import get_smollm2

        return get_smollm2.get()
    return loading.resolve(name) if files is None else loading.resolve(name, files)


def load(name: str, dtype: Any = None) -> Chat:
    """Loads a chat model.

    Args:
      name: a folder, a hub id, or "smollm2", the default model.
      dtype: of the weights; None: the device's.

    Returns:
      The model.

    Raises:
      ValueError: no such model, or one that can't be used; names it and the fix.
    """
    folder = find(name)
    config = loading.read_config(folder)
    # Reading weights waits for memory, importing transformers for the interpreter: side by side.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reading = pool.submit(loading.load_params, folder, config, dtype)
        tokens = load_tokenizer(name, folder)
        params = reading.result()
    target = transformer_target(config)
    return Chat(name, target, params, config, tokens, eos_ids(folder, tokens, config.vocab_size))


def load_tokenizer(name: str, folder: pathlib.Path) -> Any:
    """The tokenizer in a model's folder, which must have a chat template."""
    tokens = tokenizer.load(folder)
    if not getattr(tokens, "chat_template", None):
        raise ValueError(f"{name} has no chat template; take an instruction-tuned model")
    import jinja2  # as late as transformers does

    try:
        tokens.apply_chat_template([{"role": "user", "content": "Hello"}], tokenize=False)
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(
            f"the chat template in {folder} is broken (line {error.lineno}: {error.message}); "
            "correct it or download it again"
        ) from error
    except jinja2.TemplateError:
        pass  # it refuses this message, and may take others
    return tokens


def eos_ids(folder: pathlib.Path, tokens: Any, vocab_size: int) -> tuple[int, ...]:
    """All ids that end an answer: generation_config.json lists them where there are several."""
    ids: list[int] = [] if tokens.eos_token_id is None else [tokens.eos_token_id]
    for file in ("generation_config.json", "config.json"):
        if (folder / file).is_file():
            value = loading.read_json(folder / file).get("eos_token_id")
            found = value if isinstance(value, list) else [] if value is None else [value]
            if not all(isinstance(one, int) for one in found):
                raise ValueError(
                    f"{folder / file}: eos_token_id={value!r}; it must be an id or a list of ids"
                )
            ids += found
    return tuple(sorted({i for i in ids if 0 <= i < vocab_size}))
