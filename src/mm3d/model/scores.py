"""Multi-instance learning: from the scores of proposals to those of an image and a breast, in log space.

With N = 300 proposals the noisy-or 1 - prod(1 - p_n) rounds to 1 (no gradient) or cancels to 0 long before the logits
are unusual. Here the logit of the result is computed from the logits of the proposals, for any size of either.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def _log_softplus(x: Tensor) -> Tensor:
    """log(log(1 + e^x)); below -10 by its series, where softplus would underflow and lose its gradient."""
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
    # The number of views divides both the mean of p and that of 1 - p, and cancels.
    log_p = torch.logsumexp(torch.where(present, F.logsigmoid(logits), absent), dim=-1)
    log_q = torch.logsumexp(torch.where(present, F.logsigmoid(-logits), absent), dim=-1)
    return log_p - log_q
