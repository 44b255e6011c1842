import pytest

from configs import speedup_smollm2
from eval import settings


@pytest.mark.parametrize(
    ("mode", "changes", "message"),
    [
        ("ngram", {"k": 0}, "config.ngram.k=0"),
        ("ngram", {"n_max": 1}, "config.ngram.n_max=1; it must be an integer of at least 2"),
        ("ngram", {"match": "best"}, "config.ngram.match='best'"),
        ("ngram", {"k_short": 11}, "config.ngram.k_short=11 is above config.ngram.k=10; lower it"),
        ("eagle", {"max_entropy": -1}, "config.eagle.max_entropy=-1; it must be 0 .no threshold"),
        ("eagle", {"min_prob": 7}, "config.eagle.min_prob=7; it must be a number from 0 to 1"),
        ("eagle", {"k": 0}, "config.eagle.k=0"),
        ("medusa", {"k": 0}, "config.medusa.k=0"),
        ("corpus", {"min_count": 0}, "config.corpus.min_count=0"),
        ("corpus", {"min_prob": -1}, "config.corpus.min_prob=-1; it must be a number from 0 to 1"),
        (
            "suffix",
            {"capacity": 2},
            "config.suffix.capacity=2; it must be an integer of at least 3",
        ),
        (
            "suffix",
            {"min_prob": 1.2},
            "config.suffix.min_prob=1.2; it must be a number from 0 to 1",
        ),
        ("first_of", {"n_min": 0}, "config.first_of.n_min=0"),
        ("first_of", {"min_first": 2}, "config.first_of.min_first=2"),
        ("adaptive", {"acceptance": 2}, "config.adaptive.acceptance=2"),
        ("adaptive", {"fresh": 1}, "config.adaptive.fresh=1; it must be True or False"),
    ],
)
def test_a_bad_value_is_named(mode, changes, message):
    config = speedup_smollm2.get_config().to_dict()
    config[mode].update(changes)
    with pytest.raises(ValueError, match=message):
        settings.read(config)
