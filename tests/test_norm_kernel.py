import pytest, torch
pytest.importorskip("triton")
from torch.nn import functional
from faustnet.nn.kernels.batch_norm import batch_norm_relu
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
def relative(one, other): return ((one.double().cpu() - other.cpu()).norm() / other.cpu().norm()).item()
@pytest.mark.parametrize("shape", [(9, 70, 8, 8), (3, 16, 4, 4), (40, 5, 16, 16), (2, 200, 3, 5)])
def test_norm(shape):
    torch.manual_seed(0)
    maps = (torch.randn(shape) * 3 + 50).to(memory_format=torch.channels_last)
    gain, offset, weights = torch.randn(shape[1]), torch.randn(shape[1]), torch.randn(shape)
    ours = [t.to(DEVICE).detach().requires_grad_() for t in (maps, gain, offset)]
    exact = [t.double().detach().requires_grad_() for t in (maps, gain, offset)]
    found = batch_norm_relu(*ours, 1e-5)
    expected = functional.relu(functional.batch_norm(exact[0], None, None, exact[1], exact[2], training=True, eps=1e-5))
    assert relative(found, expected) < 1e-5
    a = torch.autograd.grad((found * weights.to(DEVICE)).sum(), ours)
    b = torch.autograd.grad((expected * weights).sum(), exact)
    for one, other in zip(a, b, strict=True): assert relative(one, other) < 1e-4
