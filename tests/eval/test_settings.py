import dataclasses
import json

import pytest

from configs import speedup_llama3, speedup_smollm2, speedup_smollm2_360m
from eval import settings, speedup
from tests.eval import tiny


def config(**changes):
    out = speedup_smollm2.get_config().to_dict()
    for key, value in changes.items():
        *outer, key = key.split("__")
        (out[outer[0]] if outer else out)[key] = value
    return out


@pytest.mark.parametrize("module", [speedup_llama3, speedup_smollm2, speedup_smollm2_360m])
def test_the_configs_are_valid_locked_and_survive_a_round_trip(module):
    made = module.get_config()
    assert made.is_locked
    read = settings.read(made)
    assert settings.read(dataclasses.asdict(read)) == read


def test_names_given_as_one_text_are_split():
    assert settings.read(config(modes=("plain, prompt_lookup",))).modes == (
        "plain",
        "prompt_lookup",
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"modes": ("plain", "magic")}, "config.modes holds 'magic'; choose from plain, prompt"),
        ({"modes": ("prompt_lookup",)}, "and plain: speed-ups need it"),
        ({"temperatures": ()}, "name at least one"),
        ({"temperatures": (0.0, -1.0)}, "config.temperatures holds -1.0"),
        ({"temperatures": 1.0}, "config.temperatures=1.0; it must be a tuple"),
        ({"sampled_modes": ("eagle", "magic")}, "config.sampled_modes holds 'magic'; choose"),
        ({"k": -1}, "config.k=-1; it must be an integer of at least 1"),
        ({"max_new_tokens": 0}, "config.max_new_tokens=0"),
        ({"repeats": True}, "config.repeats=True"),
        ({"seed": -3}, "config.seed=-3"),
        ({"ngram__size": 3}, "config.ngram.size: there is no such key, only k, n_max"),
        ({"ngram": 3}, "config.ngram is 3"),
        (
            {"modes": ("plain", "eagle"), "eagle__folder": ""},
            "asks for 'eagle': give the head's folder",
        ),
        (
            {"first_of__modes": ("medusa",), "modes": ("plain", "first_of"), "medusa__folder": ""},
            "asks for 'medusa': give the head's folder, config.medusa.folder",
        ),
        ({"medusa": 3}, "config.medusa is 3"),
        (
            {"first_of__modes": ("plain",)},
            "config.first_of.modes holds 'plain'; choose from prompt",
        ),
        ({"first_of__modes": ()}, r"config.first_of.modes=\(\); name some of prompt_lookup"),
        (
            {"adaptive__modes": ("adaptive",)},
            "config.adaptive.modes holds 'adaptive'; choose from prompt_lookup, .*, first_of, lookups$",
        ),
        (
            {"adaptive__modes": ("lookups",), "first_of__modes": ("eagle",)},
            r"'lookups' takes those of config.first_of.modes=\('eagle',\) that run no network",
        ),
        ({"adaptive__modes": ("eagle", "eagle")}, "config.adaptive.modes=.*, each once"),
        (
            {
                "modes": ("plain", "first_of"),
                "first_of__modes": ("prompt_lookup", "draft_model"),
                "draft": "",
            },
            "a copy of the target is no drafter: give config.draft",
        ),
        ({"first_of__n_min": 9}, "config.first_of.n_min=9 is above config.ngram.n_max=8"),
        (
            {"modes": ("plain", "corpus"), "corpus__folder": ""},
            "asks for 'corpus': give the table's folder, config.corpus.folder",
        ),
        (
            {"eagle__size": 0},
            "config.eagle.size: there is no such key, only folder, k, min_prob, max_entropy",
        ),
        ({"dtype": "int8"}, "config.dtype='int8'; choose from float32"),
        ({"verifier": "greedy"}, "config.verifier='greedy'; choose from match.*, block, typ"),
        ({"target": ""}, "config.target is empty"),
        ({"synthetic_alpha": 1.5}, "config.synthetic_alpha=1.5; it must be 0 to 1"),
        ({"tokens": 3}, "config.tokens: there is no such key, only target, draft"),
    ],
)
def test_a_bad_value_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        settings.read(config(**changes))


def test_a_lossy_verifier_is_warned_of(capsys):
    settings.read(config(verifier="typical"))
    out, err = capsys.readouterr()
    assert out == "" and err.count("warning") == err.count("\n") == 1
    assert "typical(epsilon=0.09, delta=0.3) is lossy" in err and "block or token" in err
    settings.read(config(verifier="token"))
    assert capsys.readouterr() == ("", "")
    assert settings.VERIFIERS == ("match", "coupled", "token", "block"), "eval.batch_sweep's"


def test_a_lossy_verifier_is_recorded_as_lossy(tmp_path, capsys):
    """Medusa heads, decoded with it by eval.speedup."""
    folder = tiny.make_folder(tmp_path / "model")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"category": "story", "turns": ["once"]}) + "\n")
    heads = config()["medusa"] | {"folder": str(tiny.make_medusa(tmp_path / "medusa")), "k": 2}
    changes = {
        "target": str(folder), "modes": ("plain", "medusa"), "temperatures": (1.0,), "turns": 1,
        "medusa": heads, "verifier": "typical", "prompts": str(prompts), "max_new_tokens": 8,
        "repeats": 1,
    }  # fmt: skip
    assert speedup.run(config(**changes), tmp_path / "out") == []
    out, err = capsys.readouterr()
    assert "NOT LOSSLESS" in out and err.count("is lossy") == 1
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["config"]["verifier"] == "typical"
    rules = {row["mode"]: (row["verifier"], row["lossless"]) for row in results["rows"]}
    assert rules["medusa"] == ("typical(epsilon=0.09, delta=0.3)", False)
    assert rules["plain"][1], "plain decoding drafts nothing, and so loses nothing"


def test_modes_that_are_measured_greedily_alone():
    read = settings.read(config(modes=("plain", "prompt_lookup", "adaptive")))
    assert read.greedy_alone == {"prompt_lookup"}
    assert settings.read(config(modes=("plain", "prompt_lookup"))).greedy_alone == set()
    assert settings.read(config(sampled_modes=())).greedy_alone == set()


def test_a_missing_key_is_named():
    incomplete = config()
    del incomplete["seed"]
    with pytest.raises(ValueError, match=r"config\.seed is missing"):
        settings.read(incomplete)
