import ast
import itertools

import pytest

from scripts import prompt_source, prompt_words


def test_thousands_of_distinct_prompts_from_a_seed():
    made = list(prompt_source.prompts(5000, seed=1))
    texts = [one["prompt"] for one in made]
    assert len(set(texts)) == 5000
    assert {one["source"] for one in made} == set(prompt_source._MAKERS)
    assert all(10 < len(text) < 2500 for text in texts)
    assert not [text for text in texts if "{" in text and "```" not in text], "a blank left open"
    shorter = list(itertools.islice(prompt_source.prompts(50, seed=1), 50))
    assert shorter == made[:50]
    other = [one["prompt"] for one in prompt_source.prompts(50, seed=2)]
    assert len(set(other) & set(texts[:50])) < 5


def test_functions_are_whole():
    found = prompt_source.functions()
    assert len(found) > 1500
    for source in found[::25]:
        tree = ast.parse(source)
        assert isinstance(tree.body[0], ast.FunctionDef) and len(tree.body) == 1


def test_no_more_than_there_are(monkeypatch):
    monkeypatch.setattr(
        prompt_source, "_MAKERS", dict.fromkeys(prompt_source._MAKERS, lambda _: "x")
    )
    with pytest.raises(ValueError, match="only 1 distinct prompts"):
        list(prompt_source.prompts(2, 0))


def test_every_form_has_its_blanks_filled():
    for name in ("STORY", "LIST", "LETTER", "EXPLANATION", "ROLE", "SUMMARY", "QUESTION"):
        assert len(getattr(prompt_words, f"{name}_FORMS")) >= 4
