"""Image and breast scores: at 300 proposals a careless noisy-or stops learning, or turns the whole training to NaN."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mm3d.model.scores import mean_logit, noisy_or_logit

logit = st.floats(-8, 8)


@settings(deadline=None)
@given(st.lists(logit, min_size=1, max_size=20))
def test_noisy_or_is_one_minus_the_product(logits: list[float]) -> None:
    values = torch.tensor(logits, dtype=torch.float64)
    score = 1 - (1 - values.sigmoid()).prod()
    torch.testing.assert_close(noisy_or_logit(values).double().sigmoid(), score, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("value", [-1e4, -200.0, -90.0, -30.0, -10.0, 0.0, 10.0, 30.0, 200.0, 1e4])
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_no_nan_and_no_lost_gradient_at_300_saturated_proposals(value: float, label: float) -> None:
    logits = torch.full((300,), value, requires_grad=True)
    image = noisy_or_logit(logits)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(image, torch.tensor(label))
    loss.backward()
    assert loss.isfinite()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    if bool(image > 0) != bool(label):  # a confident mistake must still be felt by every proposal
        assert (logits.grad.abs() > 1e-3).all()


def test_one_certain_proposal_among_300_decides_and_takes_the_gradient() -> None:
    logits = torch.full((300,), -20.0)
    logits[7] = 5.0
    logits.requires_grad_()
    image = noisy_or_logit(logits)
    assert image.item() == pytest.approx(5.0, abs=1e-3)
    image.backward()
    assert logits.grad is not None
    assert logits.grad.argmax() == 7
    assert logits.grad[7] > 0.99


@settings(deadline=None)
@given(st.lists(logit, min_size=2, max_size=2), st.sampled_from([(True, True), (True, False), (False, True)]))
def test_breast_score_is_the_mean_over_present_views(logits: list[float], present: tuple[bool, bool]) -> None:
    values = torch.tensor(logits, dtype=torch.float64)
    mask = torch.tensor(present)
    expected = values.sigmoid()[mask].mean()
    torch.testing.assert_close(mean_logit(values, mask).sigmoid(), expected, atol=1e-9, rtol=1e-9)


def test_breast_score_of_saturated_views_keeps_its_gradient() -> None:
    logits = torch.tensor([200.0, -200.0], requires_grad=True)
    mean_logit(logits, torch.tensor([True, False])).backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == [1.0, 0.0]
