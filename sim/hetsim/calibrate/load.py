"""The device behind --model; only a command line can name code."""

import importlib
import sys
from pathlib import Path
from typing import Any

from hetsim.calibrate.device import MeasuredDevice
from hetsim.errors import UsageError

FORM = "package.module:factory, such as hetsim.calibrate.example:network"


def load_device(reference: str, where: str = "auto") -> MeasuredDevice:
    """Return the factory's device, or its PyTorch module on this machine."""
    module_name, colon, attribute = reference.partition(":")
    if not colon or not module_name or not attribute.isidentifier():
        raise UsageError(f'--model is {FORM}; not "{reference}"')
    try:
        device = _factory(module_name, attribute)()
    except Exception as error:
        raise UsageError(f"--model {reference} failed: {type(error).__name__}: {error}") from error
    if (torch := sys.modules.get("torch")) is not None and isinstance(device, torch.nn.Module):
        from hetsim.calibrate.torch_device import device_of

        try:
            return device_of(device, where)
        except Exception as error:
            raise UsageError(f"--model {reference}: {type(error).__name__}: {error}") from error
    if isinstance(device, MeasuredDevice):
        return device
    what = "a PyTorch module, or an object with upload, compute and download (hetsim.calibrate.device.Device)"
    raise UsageError(f"--model {reference} returned a {type(device).__name__}; it must return {what}")


def _factory(module_name: str, attribute: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does: a module next to one's scenario can be named
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise UsageError("PyTorch is needed for this: pip install 'hetsim[calibrate]'") from None
        raise UsageError(f'--model: no module "{error.name}"; it is {FORM}') from None
    except Exception as error:
        raise UsageError(f"--model: {module_name} cannot be imported: {type(error).__name__}: {error}") from error
    made = getattr(module, attribute, None)
    if not callable(made):
        what = "is no function" if hasattr(module, attribute) else "is not there"
        raise UsageError(f"--model: {attribute} {what} in {module_name}; it is {FORM}")
    return made
