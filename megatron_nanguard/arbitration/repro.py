"""Run the saved call of a megatron_nanguard bundle again. Needs torch and safetensors alone.

    python repro.py                      on the CPU
    python repro.py --device cuda        on a GPU; npu for an Ascend card
    python repro.py --preload kernel.py  with the kernel under suspicion loaded first (.py or .so)
    python repro.py --full               on the whole inputs, where they were kept

An autograd.Function is imported from the library that it was from in the run. Where that is not installed, or has no
kernel for the device, a plain PyTorch reference runs in its place if the bundle holds one.

    aten.log.default in decoder.layers.1.mlp on cpu
    in the run: forward, rank 5, step 3, NVIDIA H100; the verdict was numerics
    rows 0, 1, 2, 3, 31 of 64: up to 16 bad ones and 4 good ones; --full takes all
    output 0 (5, 64) float32: 3 NaN, first at (4, 7); the same as in the run
    reproduced

Exit code 1: the non-finite values came out again; 0: they did not; 2: the call could not be run.

The plugin imports the functions of this file too, so that a call runs the same way in the job and from its bundle.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

try:
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file
    from torch import Tensor
    from torch.utils._pytree import tree_flatten
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
"""Causes after which a run of the call alone is not expected to give the bad values again."""

Json = Mapping[str, Any]
Outputs = Sequence[tuple[str, Tensor]]
Function = Callable[[dict[str, Any], dict[str, Any]], Any]
"""Takes positional arguments by name and keyword arguments."""


class LeftOut(NamedTuple):
    """Stands for an argument of a Function that no file holds.

    Attributes:
        name: of the argument.
        kind: its type.
        plain: its values as a plain tensor, where it was a quantized one that could be dequantized.
    """

    name: str
    kind: str
    plain: Tensor | None


Counts = tuple[int, int, int, "Sequence[int] | None"]
"""Number of NaN, +Inf and -Inf elements, and the index of the first of them."""


class CannotRun(Exception):
    """The call cannot be run here; says why and what would help."""


class NothingToRun(CannotRun):
    """No call was saved, or its kernel is not loaded."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bundle that this file lies in; returns the exit code."""
    parser = argparse.ArgumentParser(description="Run the saved call again; exit code 1 if it reproduces.")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or npu, with a number if there are several")
    preload_help = "load the kernel under suspicion first, a .py or .so"
    parser.add_argument("--preload", action="append", default=[], metavar="FILE", help=preload_help)
    parser.add_argument("--full", action="store_true", help="the whole inputs instead of the rows that matter")
    options = parser.parse_args(argv)
    try:
        return _reproduce(Path(__file__).parent, options)
    except CannotRun as error:
        print(f"cannot be run: {error}")
        return 2


def _reproduce(folder: Path, options: argparse.Namespace) -> int:
    call = _read_call(folder)
    is_full = options.full and call["rows"] is not None
    call = whole(call) if is_full else call
    device = open_device(options.device)
    for path in options.preload:
        _load(Path(path))
    _print_call(call, device, is_full)
    try:
        outputs, is_itself = _run_saved(call, folder, device, is_full)
        expectation = _expectation(call, is_itself or bool(options.preload))
    except NothingToRun as error:
        expectation = _expectation(call, bool(options.preload))
        if not expectation:
            raise
        print(f"cannot be run: {error}")
        print(f"not reproduced here{expectation}")
        return 0
    _print_outputs(call, outputs)
    if not is_bad(call, outputs):
        print(f"not reproduced here{expectation}")
        return 0
    print(f"reproduced, against the verdict ({call['cause']})" if call["cause"] in NOT_EXPECTED else "reproduced")
    return 1


def _expectation(call: Json, is_preloaded: bool) -> str:
    """Why the call alone is not expected to give the bad values here; empty where it is expected to."""
    if call["cause"] in NOT_EXPECTED:
        return ", as the verdict predicts"
    if call["cause"] == "undecided" and not call["operator"]:
        return ": the run found no call that brings it back"
    if call["cause"] == "operator" and not is_preloaded and not call["why_not"]:
        return ": the verdict blames the kernel; load it with --preload FILE"
    return ""


def _read_call(folder: Path) -> dict[str, Any]:
    try:
        call: dict[str, Any] = json.loads((folder / CALL_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CannotRun(f"{CALL_NAME} beside this script: {error}; a bundle is the whole directory") from None
    if call["is_redacted"]:
        raise CannotRun("its tensors were stripped by nanguard redact")
    return call


def whole(call: Json) -> dict[str, Any]:
    """The call before it was cut to the rows that matter.

    Raises:
        CannotRun: the whole inputs were not kept.
    """
    if not call["full_tensors"]:
        raise CannotRun("the whole inputs were too large to be kept; without --full it runs on the rows that matter")
    return {**call, "tensors": call["full_tensors"], "outputs": call["full_outputs"]}


def open_device(text: str) -> torch.device:
    """Return the device; import the vendor's package, such as torch_npu, where torch alone does not know it.

    Raises:
        CannotRun: there is no such device.
    """
    kind = text.partition(":")[0]
    try:
        if kind != "cpu" and not hasattr(torch, kind):
            importlib.import_module(f"torch_{kind}")
        if kind != "cpu" and not getattr(getattr(torch, kind, None), "is_available", bool)():
            raise CannotRun(f"no device {text} on this machine")
        return torch.device(text)
    except (ImportError, RuntimeError) as error:
        raise CannotRun(f"no device {text}: {error}") from None


def _load(path: Path) -> Any:
    """Run a Python file or open a shared library. What goes wrong while a Python file runs passes through."""
    if path.suffix == ".so":
        try:
            return ctypes.CDLL(str(path.resolve()))
        except OSError as error:
            raise CannotRun(f"cannot load {path}: {error}") from None
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise CannotRun(f"cannot load {path}; give a .py or a .so that is there")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def _print_call(call: Json, device: torch.device, is_full: bool) -> None:
    """Print what is run, where in the training run it was called, and which cause the verdict gave."""
    print(f"{call['operator'] or 'no operator'} in {call['module'] or 'no module'} on {device}")
    step = None if call["step"] is None else f"step {call['step']}"
    place = ", ".join(filter(None, (call["phase"], f"rank {call['rank']}", step, call["device"])))
    print(f"in the run: {place}" + (f"; the verdict was {call['cause']}" if call["cause"] else ""))
    if call["rows"] is not None and not is_full:
        rows = ", ".join(map(str, call["rows"]["rows"]))
        more = "; --full takes all" if call["full_tensors"] else ""
        print(f"rows {rows} of {call['rows']['num_rows']}: up to 16 bad ones and 4 good ones{more}")


def _run_saved(call: Json, folder: Path, device: torch.device, is_full: bool) -> tuple[Outputs, bool]:
    """Run the call, or its reference where it cannot run here.

    Returns:
        The outputs, and whether they are those of the Function itself.
    """
    if call["why_not"]:
        raise NothingToRun(call["why_not"])
    tensors = _load_tensors(folder / (FULL_NAME if is_full else TENSORS_NAME)) if call["tensors"] else {}
    is_function = call["kind"] != "operator"
    found = _find_called(call)
    try:
        if found is None:
            _print_inputs(call, tensors)
            return run(call, tensors, device, _reference(call, folder, f"{call['operator']} is not here")), False
        try:
            return run(call, tensors, device, function_of(found)), is_function
        except Exception as error:
            # An operator of another kind of device; of a Function's library, anything.
            is_elsewhere = is_function or isinstance(error, NotImplementedError)
            if not (is_elsewhere and (folder / REFERENCE_NAME).is_file()):
                raise
            reference = _reference(call, folder, f"{call['operator']} does not run here: {first_line(error)}")
            return run(call, tensors, device, reference), False
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        raise CannotRun(first_line(error)) from error


def first_line(error: Exception) -> str:
    """The first line of an error's message; its type where the message is empty."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _load_tensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise CannotRun(f"no {path.name} beside this script; a bundle is the whole directory")
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise CannotRun(f"{path.name} is damaged: {error}") from None


def _find_called(call: Json) -> Any:
    """The operator or autograd Function of the call; None where it is neither loaded nor installed."""
    found = find_operator(call["operator"]) if call["kind"] == "operator" else None
    return found or find_class(call["operator"], call["source"]) or _imported(call)


def _imported(call: Json) -> Any:
    """Import the Function from where it was defined in the run, and say which version is here; None where it is not."""
    module, _, qualified_name = call["source"].partition(":")
    if not qualified_name or module == "__main__":
        return None
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # what a package does when it is imported, it may do wrong in any way
        print(f"{module} cannot be imported: {first_line(error)}")
        return None
    for part in qualified_name.split("."):
        found = getattr(found, part, None)
    package = module.partition(".")[0]
    versions = (version_of(package) or "of an unknown version", call["versions"].get(package, "an unknown version"))
    print(f"{package} {versions[0]}; in the run: {versions[1]}")
    return found if isinstance(found, type) and issubclass(found, torch.autograd.Function) else None


def version_of(package: str) -> str:
    """The version of a loaded top-level package; empty where it gives none."""
    try:
        return metadata.version(package)
    except (metadata.PackageNotFoundError, ValueError):
        return str(getattr(sys.modules.get(package), "__version__", ""))


def _print_inputs(call: Json, tensors: Mapping[str, Tensor]) -> None:
    """Print what the saved call got, and what came out of it in the run."""
    for name, tensor in ((name, tensors[name]) for name in call["tensors"] if name in tensors):
        largest = f", largest {float(tensor.abs().max()):.6g}" if tensor.is_floating_point() and tensor.numel() else ""
        dtype = str(tensor.dtype).removeprefix("torch.")
        print(f"input {name} {tuple(tensor.shape)} {dtype}: {_pattern(count(tensor))}{largest}")
    for output in call["outputs"]:
        print(f"output {output['name']} {tuple(output['shape'])} {output['dtype']}: {_pattern(_counts_in_run(output))}")


def _reference(call: Json, folder: Path, why: str) -> Function:
    path = folder / REFERENCE_NAME
    if not path.is_file():
        raise NothingToRun(
            f"{call['operator']} is not part of torch; load the file that defines it with --preload FILE"
        )
    print(f"{why}; its plain PyTorch reference runs instead")
    reference = _load(path).REFERENCES[call["operator"]]
    return of_reference(lambda args, kwargs: reference(**args, **kwargs))


def find_operator(name: str) -> Any:
    """Look up `namespace.operator.overload`; None where it is not registered."""
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def find_class(name: str, source: str = "") -> Any:
    """The autograd Function of that name: the one defined there, else the one defined last; None if none is loaded.

    Args:
        name: of the class.
        source: "module:qualified name"; empty where that is not known.
    """
    found = [cls for cls in _subclasses(torch.autograd.Function) if cls.__name__ == name]
    there = (cls for cls in found if f"{cls.__module__}:{cls.__qualname__}" == source)
    return next(there, found[0] if found else None)


def _subclasses(base: Any) -> Iterator[Any]:
    """Yield all loaded subclasses, those defined last first."""
    for cls in reversed(type.__subclasses__(base)):
        yield cls
        yield from _subclasses(cls)


def function_of(called: Any) -> Function:
    """An operator or an autograd Function, called with the arguments that `run` reads."""
    function = getattr(called, "apply", called)

    def call(args: dict[str, Any], kwargs: dict[str, Any]) -> Any:
        for value in (*args.values(), *kwargs.values()):
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, LeftOut):
                    raise NothingToRun(f"argument {one.name} was a {one.kind}, which no file holds")
        return function(*args.values(), **kwargs)

    return call


def of_reference(reference: Function) -> Function:
    """A reference, called with the plain values of quantized tensors, and without what no file holds."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(one) for one in value]
        return value.plain if isinstance(value, LeftOut) else value

    def call(args: dict[str, Any], kwargs: dict[str, Any]) -> Any:
        given = {name: plain(value) for name, value in args.items()}
        return reference(given, {name: plain(value) for name, value in kwargs.items()})

    return call


def run(call: Json, tensors: Mapping[str, Tensor], device: torch.device, function: Function) -> Outputs:
    """Make the call on one device.

    Returns:
        The outputs with their names; of a backward the gradients of the inputs that asked for one.
    Raises:
        CannotRun: it draws random numbers of another kind of device, or names a dtype that this torch does not have.
    Sync: none of its own.
    """
    placed = {name: place(tensors[name], meta, call, device) for name, meta in call["tensors"].items()}
    args, kwargs, grad_outputs = (_arguments(call[side], placed, device) for side in ("args", "kwargs", "grad_outputs"))
    if call["rng"] is not None:
        _set_rng_state(call, tensors[call["rng"]], device)
    if call["kind"] != "backward":
        with torch.no_grad():
            outputs = named(function(args, kwargs), args)
        overwritten = [output["name"] for output in call["outputs"] if call["kind"] == "forward"]
        return [*outputs, *((name, placed[name]) for name in overwritten if name in placed)]
    with torch.enable_grad():
        results = function(args, kwargs)
    found = _gradients(args, [results] if isinstance(results, Tensor) else results, grad_outputs.values())
    # A reference returns the gradient of a weight that the kernel has added to `main_grad`.
    expected = {output["name"] for output in call["outputs"]}
    return [(f"w{name}" if f"w{name}" in expected - {name} else name, grad) for name, grad in found]


def place(tensor: Tensor, meta: Json, call: Json, device: torch.device) -> Tensor:
    """Lay a tensor out in memory as it was; numbers that a GPU operator took from the host stay there."""
    stays = meta["device"] == "cpu" and any(other["device"] != "cpu" for other in call["tensors"].values())
    target = torch.empty_strided(
        tuple(meta["shape"]), tuple(meta["stride"]), dtype=tensor.dtype, device="cpu" if stays else device
    )
    if not meta.get("is_unwritten"):
        target.copy_(tensor)
    placed = target.requires_grad_(meta["requires_grad"] and call["kind"] != "operator")
    if not meta.get("is_parameter") or call["kind"] == "operator":
        return placed
    parameter = torch.nn.Parameter(placed.detach(), requires_grad=meta["requires_grad"])
    for argument in meta["attributes"]:
        (value,) = argument["values"]
        is_zeros = value["kind"] == "zeros"
        found = torch.zeros_like(placed, dtype=type_of(value["text"])) if is_zeros else _plain_value(value)
        setattr(parameter, argument["name"], found.detach() if is_zeros else found)
    return parameter


def _plain_value(value: Json) -> Any:
    read: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str}
    read["bool"] = lambda text: text == "true"
    return read[value["kind"]](value["text"])


def _arguments(saved: Sequence[Json], tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Any]:
    read: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "complex": complex, "str": str}
    read |= {"none": lambda text: None, "bool": lambda text: text == "true", "device": lambda text: device}
    read |= dict.fromkeys(("dtype", "layout", "memory_format"), type_of)
    read["tensor"] = lambda text: tensors[text]
    read["generator"] = lambda text: torch.Generator(device).manual_seed(0).set_state(tensors[text].cpu())
    found = {}
    for argument in saved:
        values = []
        for index, value in enumerate(argument["values"]):
            name = f"{argument['name']}.{index}" if argument["is_list"] else argument["name"]
            is_left_out = value["kind"] == "object"
            made = LeftOut(name, value["text"], tensors.get(name)) if is_left_out else None
            values.append(made if is_left_out else read[value["kind"]](value["text"]))
        found[argument["name"]] = values if argument["is_list"] else values[0]
    return found


def type_of(text: str) -> Any:
    """The dtype, layout or memory format of that name.

    Raises:
        CannotRun: this torch has none.
    """
    value = getattr(torch, text, None)
    if type(value) not in (torch.dtype, torch.layout, torch.memory_format):
        raise CannotRun(f"torch.{text} is neither a dtype nor a layout of this torch")
    return value


def _set_rng_state(call: Json, state: Tensor, device: torch.device) -> None:
    if device.type != call["rng_device"]:
        raise CannotRun(f"it draws random numbers, which {device.type} draws otherwise than {call['rng_device']}")
    if device.type == "cpu":  # not torch.set_rng_state: a process may have mapped that to another generator
        torch.default_generator.set_state(state)
    else:
        getattr(torch, device.type).set_rng_state(state)


def named(result: Any, args: Mapping[str, Any]) -> Outputs:
    """The tensors of a result; an operator that returns nothing has written into its first argument."""
    leaves, _ = tree_flatten(next(iter(args.values())) if result is None else result)
    return [(str(index), leaf) for index, leaf in enumerate(leaf for leaf in leaves if isinstance(leaf, Tensor))]


def _gradients(args: Mapping[str, Any], results: Iterable[Any], grad_outputs: Iterable[Any]) -> Outputs:
    """Gradients of the arguments that asked for one; what a backward has added to `main_grad` itself in place of it."""
    wanted = {name: value for name, value in args.items() if isinstance(value, Tensor) and value.requires_grad}
    pairs = [
        (result, grad)
        for result, grad in zip(results, grad_outputs, strict=False)
        if isinstance(result, Tensor) and result.requires_grad and grad is not None
    ]
    outputs, given = [result for result, _ in pairs], [grad for _, grad in pairs]
    found = torch.autograd.grad(outputs, list(wanted.values()), given, allow_unused=True)
    gradients = []
    for (name, value), grad in zip(wanted.items(), found, strict=True):
        main_grad = getattr(value, "main_grad", None)
        if main_grad is not None and (grad is None or getattr(value, "grad_added_to_main_grad", False)):
            gradients.append((f"wgrad of {name}", main_grad))
        elif grad is not None:
            gradients.append((f"grad of {name}", grad))
    return gradients


def count(tensor: Tensor) -> Counts:
    """Count the NaN, +Inf and -Inf elements and find the first of them.

    Sync: waits for the device.
    """
    if not tensor.is_floating_point():
        return 0, 0, 0, None
    values = tensor.detach().to("cpu")
    values = values.float() if values.element_size() == 1 else values
    bad = torch.nonzero(~torch.isfinite(values))
    masks = (torch.isnan(values), torch.isposinf(values), torch.isneginf(values))
    nan, positive, negative = (int(mask.sum()) for mask in masks)
    return nan, positive, negative, bad[0].tolist() if len(bad) else None


def is_bad(call: Json, outputs: Outputs) -> bool:
    """Whether the result is as bad as it was in the run: NaN again, or where it was Inf, the same Inf or worse.

    An Inf does not replace a NaN that is gone, since it may be intended, such as that of a mask. Where the outputs were
    finite in the run, anything bad counts.
    """
    before = {output["name"]: set(_words(_counts_in_run(output))) for output in call["outputs"]}
    was_finite = not any(before.values())
    for name, tensor in outputs:
        now, then = set(_words(count(tensor))), before.get(name, set())
        if (was_finite and now) or (then and "NaN" in now) or ("NaN" not in then and now & then):
            return True
    return False


def _print_outputs(call: Json, outputs: Outputs) -> None:
    """Print what came out beside what came out in the run."""
    before = {output["name"]: _pattern(_counts_in_run(output)) for output in call["outputs"]}
    for name, tensor in outputs:
        now, then = _pattern(count(tensor)), before.get(name)
        beside = "the same as in the run" if now == then else f"in the run: {then or 'not looked at'}"
        dtype = str(tensor.dtype).removeprefix("torch.")
        print(f"output {name} {tuple(tensor.shape)} {dtype}: {now}; {beside}")


def _counts_in_run(output: Json) -> Counts:
    return output["nan"], output["positive_inf"], output["negative_inf"], output["first"]


def _words(counts: Counts) -> dict[str, int]:
    """{"NaN": 3} where there are 3 NaN and no Inf."""
    return {word: number for word, number in zip(("NaN", "+Inf", "-Inf"), counts[:3], strict=True) if number}


def _pattern(counts: Counts) -> str:
    if counts[3] is None:
        return "finite"
    numbers = ", ".join(f"{number} {word}" for word, number in _words(counts).items())
    return f"{numbers}, first at {tuple(counts[3])}"


def _exit_with_2(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """End after an unexpected error: Python's own exit code, 1, would say that the call reproduced."""
    sys.__excepthook__(kind, error, trace)
    sys.exit(2)


if __name__ == "__main__":
    sys.excepthook = _exit_with_2
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
