"""Multi-instance learning: from the scores of proposals to those of an image and a breast, in log space.

With N = 300 proposals and ordinary logits the noisy-or 1 - prod(1 - p_n) already rounds to 1, without a gradient, or to
0. So the logit of the result is computed from the logits of the proposals, which works for any values.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def _log_softplus(x: Tensor) -> Tensor:
    """log(log(1 + e^x)). Below -10 it uses a series, because softplus would underflow and lose its gradient."""
    far = x < -10
    series = x - torch.exp(x.clamp(max=-10)) / 2
    return torch.where(far, series, torch.log(F.softplus(torch.where(far, 0.0, x))))


def noisy_or_logit(logits: Tensor) -> Tensor:
    """The logit of "at least one": proposals' logits (..., N) -> (...).

    With a = -log prod(1 - p_n) = sum softplus(m_n), the score is 1 - e^-a and its logit log(e^a - 1).
    """
    log_a = torch.logsumexp(_log_softplus(logits.float()), dim=-1)
    small = log_a < -10
    a = torch.exp(torch.where(small, 0.0, log_a))
    return torch.where(small, log_a + torch.exp(log_a.clamp(max=-10)) / 2, a + torch.log(-torch.expm1(-a)))


def mean_logit(logits: Tensor, present: Tensor) -> Tensor:
    """The logit of the mean score over the views that are present: (..., V) and (..., V) bool -> (...)."""
    absent = torch.full_like(logits, -torch.inf)
    # Both the mean of p and the mean of 1 - p are divided by the number of views, which cancels.
    log_p = torch.logsumexp(torch.where(present, F.logsigmoid(logits), absent), dim=-1)
    log_q = torch.logsumexp(torch.where(present, F.logsigmoid(-logits), absent), dim=-1)
    return log_p - log_q
