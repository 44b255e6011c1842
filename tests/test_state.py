import specjax
from specjax.state import EOS, LENGTH, RUNNING


def test_reasons_have_their_numbers() -> None:
    assert specjax.FinishReason.RUNNING == RUNNING == 0
    assert specjax.FinishReason.EOS == EOS
    assert specjax.FinishReason.LENGTH == LENGTH
