"""Drafters: what guesses. One a file; each is a factory that returns a ``Drafter``."""

from specjax.drafters.corpus import CorpusParams, corpus, corpus_params
from specjax.drafters.corpus_table import CorpusTable
from specjax.drafters.draft_model import DraftModelParams, check_same_tokenizer, draft_model
from specjax.drafters.eagle import EagleParams, eagle, eagle_params
from specjax.drafters.first_of import first_of, learn_each
from specjax.drafters.medusa import MedusaParams, medusa, medusa_params
from specjax.drafters.ngram import ngram
from specjax.drafters.suffix import PastOutputs, past_outputs, remember, suffix

__all__ = [
    "CorpusParams",
    "CorpusTable",
    "DraftModelParams",
    "EagleParams",
    "MedusaParams",
    "PastOutputs",
    "check_same_tokenizer",
    "corpus",
    "corpus_params",
    "draft_model",
    "eagle",
    "eagle_params",
    "first_of",
    "learn_each",
    "medusa",
    "medusa_params",
    "ngram",
    "past_outputs",
    "remember",
    "suffix",
]
