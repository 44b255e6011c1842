"""Loading a chat model: what is wrong with its folder is one sentence that names the file."""

import pytest

from eval import chat
from tests.eval import tiny


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("generation_config.json", '{"eos_tok', r"generation_config\.json is not valid JSON"),
        ("generation_config.json", "[1]", r"generation_config\.json holds a list; it must be"),
        ("generation_config.json", '{"eos_token_id": "x"}', r"config\.json: eos_token_id='x'; it"),
        ("config.json", "[]", r"config\.json holds a list; it must be a JSON object"),
        ("chat_template.jinja", "{% for m in", r"the chat template in .* is broken \(line 1: "),
        ("chat_template.jinja", "{{ nothing.at }}", r"the chat template of .* refuses the mess"),
    ],
)
def test_a_broken_file_is_named(tmp_path, file, text, message):
    folder = tiny.make_folder(tmp_path)
    (folder / file).write_text(text)
    with pytest.raises(ValueError, match=message):
        chat.load(str(folder)).encode(["hello"])
