"""What of the module ``torch`` is looked at where no mode, transform or tracer is active."""

from types import SimpleNamespace
from typing import Any


def fake_torch(stream: Any = None, **more: Any) -> SimpleNamespace:
    """Return it; ``stream`` gives the current stream of a device."""
    return SimpleNamespace(
        Tensor=(),  # nothing is an instance of one
        autograd=SimpleNamespace(forward_ad=SimpleNamespace(_current_level=-1)),
        _C=SimpleNamespace(
            _len_torch_dispatch_stack=lambda: 0,
            _get_tracing_state=lambda: None,
            _are_functorch_transforms_active=lambda: False,
            _cuda_getCurrentRawStream=stream,
        ),
        **more,
    )
