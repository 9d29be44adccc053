"""Run the saved call of a megatron_nanguard bundle again. Needs torch and safetensors alone.

    python repro.py                      on the CPU
    python repro.py --device cuda        on a GPU; npu for an Ascend card
    python repro.py --preload kernel.py  with the kernel under suspicion loaded first (.py or .so)
    python repro.py --full               on the whole inputs, where they were kept

    aten.log.default in decoder.layers.1.mlp on cpu
    in the run: forward, rank 5, step 3, NVIDIA H100; the verdict was numerics
    rows 0, 1, 2, 3, 31 of 64: up to 16 bad ones and 4 good ones; --full takes all
    output 0 (5, 64) float32: 3 NaN, first at (4, 7); the same as in the run
    reproduced

Exit code 1: the non-finite values came out again; 0: they did not; 2: the call could not be run.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

try:
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file
    from torch import Tensor
except ModuleNotFoundError as missing:
    if __name__ != "__main__":
        raise
    print(f"cannot be run: {missing}; it needs torch and safetensors: pip install torch safetensors")
    sys.exit(2)

CALL_NAME = "call.json"
TENSORS_NAME = "tensors.safetensors"
FULL_NAME = "full.safetensors"
REFERENCE_NAME = "reference.py"
NOT_EXPECTED = ("communication", "uninitialised_or_race", "hardware_transient", "hardware_persistent")
"""Causes that a run of the call alone does not bring back."""

WORDS = ("NaN", "+Inf", "-Inf")

Json = Mapping[str, Any]
Function = Callable[[dict[str, Any], dict[str, Any]], Any]
"""Takes positional arguments by name and keyword arguments."""


class CannotRun(Exception):
    """The call cannot be run here; says why and what would help."""


class NothingToRun(CannotRun):
    """There is no call, or nothing that makes it: no call was saved, or its kernel is not loaded."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bundle that this file lies in."""
    parser = argparse.ArgumentParser(description="Run the saved call again; exit code 1 if it reproduces.")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or npu, with a number if there are several")
    parser.add_argument(
        "--preload",
        action="append",
        default=[],
        metavar="FILE",
        help="load the kernel under suspicion first, a .py or .so",
    )
    parser.add_argument("--full", action="store_true", help="the whole inputs instead of the rows that matter")
    options = parser.parse_args(argv)
    try:
        return _attempt(options)
    except CannotRun as error:
        print(f"cannot be run: {error}")
        return 2


def _attempt(options: argparse.Namespace) -> int:
    folder, preloaded = Path(__file__).parent, bool(options.preload)
    call = read_call(folder)
    is_full = options.full and call["rows"] is not None
    call = whole(call) if is_full else call
    try:
        outputs = _outputs(call, folder, options, is_full)
    except NothingToRun as error:
        if not (_is_without_call(call) or (_lacks_kernel(call, preloaded) and not call["why_not"])):
            raise
        print(f"cannot be run: {error}")
        return _say_not_reproduced(call, preloaded)
    show(call, outputs)
    if not is_bad(call, outputs):
        return _say_not_reproduced(call, preloaded)
    print("reproduced" if is_expected(call) else f"reproduced, against the verdict ({call['cause']})")
    return 1


def _outputs(call: Json, folder: Path, options: argparse.Namespace, is_full: bool) -> list[tuple[str, Tensor]]:
    device = open_device(options.device)
    for path in options.preload:
        preload(Path(path))
    introduce(call, device, is_full)
    if call["why_not"]:
        raise NothingToRun(call["why_not"])
    tensors = load_tensors(folder, is_full) if call["tensors"] else {}
    function = find_function(call)
    try:
        try:
            return run(call, tensors, device, function)
        except NotImplementedError:  # an operator of another kind of device
            if reference_function() is None:
                raise
            return run(call, tensors, device, _announced_reference(call))
    except (RuntimeError, TypeError, ValueError) as error:
        raise CannotRun((str(error).splitlines() or [type(error).__name__])[0]) from error


def read_call(folder: Path) -> dict[str, Any]:
    """Read what was called.

    Raises:
        CannotRun: it is not there, damaged, or its tensors were stripped.
    """
    try:
        call: dict[str, Any] = json.loads((folder / CALL_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CannotRun(f"{CALL_NAME} beside this script: {error}; a bundle is the whole directory") from None
    if call["is_redacted"]:
        raise CannotRun("its tensors were stripped by nanguard redact")
    return call


def introduce(call: Json, device: torch.device, is_full: bool) -> None:
    """Print what is run, where it stood in the training run, and what was thought of it there."""
    print(f"{call['operator'] or 'no operator'} in {call['module'] or 'no module'} on {device}")
    step = None if call["step"] is None else f"step {call['step']}"
    place = ", ".join(filter(None, (call["phase"], f"rank {call['rank']}", step, call["device"])))
    print(f"in the run: {place}" + (f"; the verdict was {call['cause']}" if call["cause"] else ""))
    if call["rows"] is not None and not is_full:
        rows = ", ".join(map(str, call["rows"]["rows"]))
        more = "; --full takes all" if call["full_tensors"] else ""
        print(f"rows {rows} of {call['rows']['num_rows']}: up to 16 bad ones and 4 good ones{more}")


def load_tensors(folder: Path, full: bool = False) -> dict[str, Tensor]:
    """Read the tensors.

    Raises:
        CannotRun: they are not there, or damaged.
    """
    path = folder / (FULL_NAME if full else TENSORS_NAME)
    if not path.is_file():
        raise CannotRun(f"no {path.name} beside this script; a bundle is the whole directory")
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise CannotRun(f"{path.name} is damaged: {error}") from None


def whole(call: Json) -> dict[str, Any]:
    """The call before it was cut to the rows that matter.

    Raises:
        CannotRun: that was not kept.
    """
    if not call["full_tensors"]:
        raise CannotRun("the whole inputs were too large to be kept; without --full it runs on the rows that matter")
    return {**call, "tensors": call["full_tensors"], "outputs": call["full_outputs"]}


def open_device(text: str) -> torch.device:
    """The device; a vendor's package, such as that of npu, is imported where torch does not know it by itself.

    Raises:
        CannotRun: there is none.
    """
    kind = text.partition(":")[0]
    if kind != "cpu" and not hasattr(torch, kind):
        try:
            importlib.import_module(f"torch_{kind}")
        except ImportError as error:
            raise CannotRun(f"no device {text}: {error}") from None
    if kind != "cpu" and not getattr(getattr(torch, kind, None), "is_available", bool)():
        raise CannotRun(f"no device {text} on this machine")
    try:
        return torch.device(text)
    except RuntimeError as error:
        raise CannotRun(f"no device {text}: {error}") from None


def preload(path: Path) -> None:
    """Load a kernel: a Python file is run, a shared library is opened.

    Raises:
        CannotRun: it is neither of them. What goes wrong while a Python file runs passes through.
    """
    if path.suffix == ".so":
        try:
            ctypes.CDLL(str(path.resolve()))
        except OSError as error:
            raise CannotRun(f"cannot load {path}: {error}") from None
        return
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise CannotRun(f"cannot load {path}; give a .py or a .so that is there")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)


def find_function(call: Json) -> Function:
    """The operator, or the autograd Function; where that is not loaded, the reference that lies beside.

    Raises:
        NothingToRun: none of them is here.
    """
    if call["kind"] == "operator":
        operator = find_operator(call["operator"])
        if operator is not None:
            return operator_function(operator)
    loaded = find_class(call["operator"])
    if loaded is not None:
        return lambda args, kwargs: loaded.apply(*args.values())
    return _announced_reference(call)


def find_class(name: str, base: Any = torch.autograd.Function) -> Any:
    """The autograd Function of that name that was defined last; None when none is loaded."""
    for cls in reversed(base.__subclasses__()):
        found = cls if cls.__name__ == name else find_class(name, cls)
        if found is not None:
            return found
    return None


def _announced_reference(call: Json) -> Function:
    function = reference_function()
    if function is None:
        raise NothingToRun(
            f"{call['operator']} is not part of torch; load the file that defines it with --preload FILE"
        )
    print(f"{call['operator']} is not here; its plain PyTorch reference runs instead")
    return function


def reference_function() -> Function | None:
    """What `reference.py` beside this file computes; None when it is not there."""
    path = Path(__file__).with_name(REFERENCE_NAME)
    if not path.is_file():
        return None
    spec = importlib.util.spec_from_file_location("reference", path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda args, kwargs: module.reference(**args, **kwargs)


def find_operator(name: str) -> Any:
    """Look up `namespace.operator.overload`; None where nobody has registered it."""
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def operator_function(operator: Any) -> Function:
    """An operator as a Function of this file."""
    return lambda args, kwargs: operator(*args.values(), **kwargs)


def run(
    call: Json, tensors: Mapping[str, Tensor], device: torch.device, function: Function
) -> list[tuple[str, Tensor]]:
    """Make the call on one device.

    Returns:
        The outputs with their names; of a backward the gradients of the inputs that asked for one.
    Sync: none of its own.
    """
    placed = {name: place(tensors[name], meta, call, device) for name, meta in call["tensors"].items()}
    args = _arguments(call["args"], placed, device)
    kwargs = _arguments(call["kwargs"], placed, device)
    if call["rng"] is not None:
        set_rng_state(call, tensors[call["rng"]], device)
    if call["kind"] != "backward":
        with torch.no_grad():
            return named(function(args, kwargs), args)
    with torch.enable_grad():
        results = function(args, kwargs)
    given = list(_arguments(call["grad_outputs"], placed, device).values())
    return gradients(args, [results] if isinstance(results, Tensor) else list(results), given)


def place(tensor: Tensor, meta: Json, call: Json, device: torch.device) -> Tensor:
    """Lay a tensor out as it was; numbers that a GPU operator took from the host stay there."""
    stays = meta["device"] == "cpu" and any(other["device"] != "cpu" for other in call["tensors"].values())
    target = torch.empty_strided(
        tuple(meta["shape"]), tuple(meta["stride"]), dtype=tensor.dtype, device="cpu" if stays else device
    )
    return target.copy_(tensor).requires_grad_(meta["requires_grad"] and call["kind"] != "operator")


def value_of(kind: str, text: str, tensors: Mapping[str, Tensor], device: torch.device) -> Any:
    """One value of a saved argument."""
    if kind in ("dtype", "layout", "memory_format"):
        return type_of(text)
    if kind == "generator":
        return torch.Generator(device).manual_seed(0).set_state(tensors[text].cpu())
    numbers: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "complex": complex}
    if kind in numbers:
        return numbers[kind](text)
    simple = {"none": None, "bool": text == "true", "str": text, "device": device}
    return tensors[text] if kind == "tensor" else simple[kind]


def type_of(text: str) -> Any:
    """The dtype, layout or memory format of that name.

    Raises:
        CannotRun: it is something else.
    """
    value = getattr(torch, text, None)
    if type(value) not in (torch.dtype, torch.layout, torch.memory_format):
        raise CannotRun(f"torch.{text} is neither a dtype nor a layout of this torch")
    return value


def _arguments(saved: Sequence[Json], tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Any]:
    found = {}
    for argument in saved:
        values = [value_of(value["kind"], value["text"], tensors, device) for value in argument["values"]]
        found[argument["name"]] = values if argument["is_list"] else values[0]
    return found


def set_rng_state(call: Json, state: Tensor, device: torch.device) -> None:
    """Let the same random numbers be drawn.

    Raises:
        CannotRun: another kind of device draws others.
    """
    if device.type != call["rng_device"]:
        raise CannotRun(f"it draws random numbers, which {device.type} draws otherwise than {call['rng_device']}")
    if device.type == "cpu":  # not torch.set_rng_state: a process may have mapped that to another generator
        torch.default_generator.set_state(state)
    else:
        getattr(torch, device.type).set_rng_state(state)


def named(result: Any, args: Mapping[str, Any]) -> list[tuple[str, Tensor]]:
    """The tensors of a result; an operator that returns nothing has written into its first argument."""
    if result is None:
        result = next(iter(args.values()))
    return [(str(index), tensor) for index, tensor in enumerate(_tensors_in(result))]


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors_in(item)


def gradients(args: Mapping[str, Any], results: list[Any], given: list[Any]) -> list[tuple[str, Tensor]]:
    """Gradients of the arguments that asked for one."""
    wanted = {name: value for name, value in args.items() if isinstance(value, Tensor) and value.requires_grad}
    pairs = [
        (result, grad)
        for result, grad in zip(results, given, strict=False)
        if isinstance(result, Tensor) and result.requires_grad and grad is not None
    ]
    found = torch.autograd.grad(
        [result for result, _ in pairs], list(wanted.values()), [grad for _, grad in pairs], allow_unused=True
    )
    return [(f"grad of {name}", grad) for name, grad in zip(wanted, found, strict=True) if grad is not None]


def count(tensor: Tensor) -> tuple[int, int, int, list[int] | None]:
    """NaN, +Inf and -Inf elements, and the first bad position.

    Sync: waits for the device.
    """
    if not tensor.is_floating_point():
        return 0, 0, 0, None
    values = tensor.detach().to("cpu")
    values = values.float() if values.element_size() == 1 else values
    bad = torch.nonzero(~torch.isfinite(values))
    first = [int(index) for index in bad[0]] if len(bad) else None
    masks = (torch.isnan(values), torch.isposinf(values), torch.isneginf(values))
    nan, positive, negative = (int(mask.sum()) for mask in masks)
    return nan, positive, negative, first


def is_bad(call: Json, outputs: Sequence[tuple[str, Tensor]]) -> bool:
    """Whether the result is as bad as what was seen: NaN again, or where it was Inf, the same Inf or worse.

    Infinities that were meant may stand beside the NaN, so that a NaN that is gone is not made up for by an Inf. Where
    nothing bad was seen when the call was saved, anything bad counts.
    """
    was_finite = not any(_kinds(_counts(output)) for output in call["outputs"])
    expected = {output["name"]: _kinds(_counts(output)) for output in call["outputs"]}
    for name, tensor in outputs:
        seen, wanted = _kinds(count(tensor)[:3]), expected.get(name, set())
        if (was_finite and seen) or (wanted and "NaN" in seen) or ("NaN" not in wanted and seen & wanted):
            return True
    return False


def show(call: Json, outputs: Sequence[tuple[str, Tensor]]) -> None:
    """Print what came out beside what was seen."""
    expected = {output["name"]: _pattern(_counts(output), output["first"]) for output in call["outputs"]}
    for name, tensor in outputs:
        *counts, first = count(tensor)
        found, seen = _pattern(counts, first), expected.get(name)
        dtype = str(tensor.dtype).removeprefix("torch.")
        beside = "the same as in the run" if found == seen else f"in the run: {seen or 'not looked at'}"
        print(f"output {name} {tuple(tensor.shape)} {dtype}: {found}; {beside}")


def _pattern(counts: Sequence[int], first: Sequence[int] | None) -> str:
    numbers = ", ".join(f"{number} {word}" for number, word in zip(counts, WORDS, strict=True) if number)
    return f"{numbers}, first at {tuple(first)}" if first is not None else "finite"


def _counts(output: Json) -> tuple[int, int, int]:
    return output["nan"], output["positive_inf"], output["negative_inf"]


def _kinds(counts: Sequence[int]) -> set[str]:
    return {word for number, word in zip(counts, WORDS, strict=True) if number}


def is_expected(call: Json) -> bool:
    """Whether the verdict, if there is one, says that the call alone brings the values back."""
    return call["cause"] not in NOT_EXPECTED


def _say_not_reproduced(call: Json, preloaded: bool) -> int:
    if not is_expected(call):
        print("not reproduced here, as the verdict predicts")
    elif _is_without_call(call):
        print("not reproduced here: the run found no call that brings it back")
    elif _lacks_kernel(call, preloaded):
        print("not reproduced here: the verdict blames the kernel; load it with --preload FILE")
    else:
        print("not reproduced here")
    return 0


def _is_without_call(call: Json) -> bool:
    """Whether the run knew already that there is no call that brings the values back."""
    return not is_expected(call) or (call["cause"] == "undecided" and not call["operator"])


def _lacks_kernel(call: Json, preloaded: bool) -> bool:
    return call["cause"] == "operator" and not preloaded


def _fail(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """An error of the script or of what it loaded is no answer, and Python's own exit code would be one."""
    sys.__excepthook__(kind, error, trace)
    sys.exit(2)


if __name__ == "__main__":
    sys.excepthook = _fail
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
