import collections

import pytest

from eval import prompts


def test_the_builtin_set_is_eight_categories_of_four_and_the_articles_two():
    read = prompts.read()
    counts = collections.Counter(p.category for p in read if p.name not in prompts.ARTICLE)
    assert len(counts) == 8 and set(counts.values()) == {4}
    assert [p.name for p in read[:2]] == list(prompts.ARTICLE)
    assert [p.category for p in read[:2]] == ["code_edit", "story"]
    assert all(len(p.turns) == 1 for p in read)


def test_other_keys_are_ignored_and_names_are_line_numbers(tmp_path):
    file = tmp_path / "questions.jsonl"
    file.write_text('{"question_id": 81, "category": "a", "turns": ["x", "y"]}\n\n'
                    '{"category": "b", "turns": ["z"], "name": "it"}\n')  # fmt: skip
    assert prompts.read(file) == [("1", "a", ("x", "y")), ("it", "b", ("z",))]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2 is '\\[1\\]'; it must be a JSON object"),
        ('{"category": "a"}', 'line 2: "turns" is None'),
        ('{"category": "a", "turns": []}', 'line 2: "turns" is \\[\\]'),
        ('{"category": "a", "turns": "x"}', "line 2: \"turns\" is 'x'"),
        ('{"category": "a", "turns": ["x", " "]}', "line 2: \"turns\" holds ' '"),
        ('{"category": 3, "turns": ["x"]}', 'line 2: "category" is 3'),
        ('{"turns": ["x"]}', 'line 2: "category" is None'),
        ('{"category": "a", "turns": ["x"], "name": "1"}', "line 2: the \"name\" '1' occurs twice"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, line, message):
    file = tmp_path / "questions.jsonl"
    file.write_text('{"category": "a", "turns": ["x"]}\n' + line + "\n")
    with pytest.raises(ValueError, match=message):
        prompts.read(file)


def test_a_missing_an_empty_and_a_binary_file(tmp_path):
    with pytest.raises(ValueError, match=r"no\.jsonl': No such file"):
        prompts.read(tmp_path / "no.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(ValueError, match="holds no prompts; give it"):
        prompts.read(tmp_path / "empty.jsonl")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not UTF-8"):
        prompts.read(tmp_path / "binary.jsonl")
