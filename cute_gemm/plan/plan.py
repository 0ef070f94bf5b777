"""``Plan``: kernel selection and launches for a GEMM, to be inspected, compiled and run."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakValueDictionary

from cute_gemm.arrays import fingerprint
from cute_gemm.arrays.torch import as_operator, traced
from cute_gemm.cost_model.calibrated import provenance
from cute_gemm.gpus.table import gpu as known_gpu
from cute_gemm.kernels.candidate import Candidate, Measured, why
from cute_gemm.kernels.summation import OrderOfSummation
from cute_gemm.plan.executable import Executable, RecentCall
from cute_gemm.plan.packed import PackedOperand
from cute_gemm.plan.select import Selection
from cute_gemm.plan.steps import Steps, reduces
from cute_gemm.problem.parts.scales import describe_scales
from cute_gemm.problem.scalars import check_beta, scalar
from cute_gemm.toolchain.nvrtc import prove

if TYPE_CHECKING:
    from concurrent.futures import Future

    from cute_gemm.gpus.gpu import Gpu
    from cute_gemm.gpus.table import GpuLike
    from cute_gemm.kernels.base import Kernel
    from cute_gemm.problem.parts.packing import Algorithm
    from cute_gemm.problem.problem import GemmProblem
    from cute_gemm.report.report import Report
    from cute_gemm.report.traced import Trace
    from cute_gemm.toolchain.cubin import Build, Proof, Resources
    from cute_gemm.toolchain.signature import Launch, Signature
    from cute_gemm.toolchain.unit import TranslationUnit


#: The live plans, by the numbers that PyTorch's graphs refer to them by.
_numbered: WeakValueDictionary[str, Plan] = WeakValueDictionary()


def numbered(number: str) -> Plan | None:
    """Return the plan that a graph refers to by this number, None if it is not in this process."""
    return _numbered.get(number)


class Plan:
    """The kernel and its config for one problem on one architecture. `plan` makes it.

    Attributes
    ----------
    problem
        The `GemmProblem`: extents, types and CuTe descriptors.
    backend
        Where a call computes: ``"cuda"``, ``"cpu"`` or ``"interpreter"``.
    device
        The ordinal of the CUDA device, or None.
    arch
        The architecture of the kernel, ``"sm_90a"``; ``"cpu"`` for ``kernel="host"``.

    Examples
    --------
    >>> import numpy as np
    >>> from cute_gemm import plan
    >>> A, B = np.ones((8, 4), "f4"), np.ones((4, 2), "f4")
    >>> p = plan("NN", A, B, backend="cpu")
    >>> p.problem.blas_op, p.kernel, p(A, B)[0, 0]
    ('TT', 'thin', np.float32(4.0))
    """

    def __init__(
        self, problem: GemmProblem, backend: Literal["cuda", "cpu", "interpreter"],
        device: int | None, arch: str, selection: Selection, by_name: bool = True,
    ) -> None:  # fmt: skip
        self.problem = problem
        self.backend = backend
        self.device = device
        self.arch = arch
        self._selection = selection
        self._by_name = by_name
        self.executable = Executable(problem, selection, by_name, arch, backend, device)
        self._last: RecentCall | None = None
        #: The plan that replaces it in `gemm` once built; the config that it replaces.
        self.better: Plan | None = None
        self.instead_of = ""
        #: The candidates that its calls time, printed as a sentence.
        self.online: object | None = None
        # PyTorch's graphs refer to it by this: a saved graph must not find another plan elsewhere.
        # It is made here since torch.compile does not trace it.
        self._number = str(int.from_bytes(os.urandom(8), "big"))
        _numbered[self._number] = self

    def __repr__(self) -> str:
        p = self.problem
        sizes = f"m={p.m} n={p.n} k={p.k}" + (f" l={p.l}" if p.l != 1 else "")
        epilogue = f" epilogue={p.epilogue.label}" * bool(p.epilogue.label)
        return f"Plan({p.op} {sizes} {p.dtype}{epilogue}, {self.config.name}, {self.arch})"

    @property
    def _kernel(self) -> Kernel:
        return self._selection.kernel

    @property
    def kernel(self) -> str:
        """The name of the kernel."""
        return self._kernel.name

    @property
    def config(self) -> Any:
        """The config of the kernel, with its options as fields."""
        return self._selection.config

    @property
    def gpu(self) -> Gpu:
        """The `Gpu` that the config is selected for."""
        return self._selection.gpu

    @property
    def algorithm(self) -> Algorithm:
        """The auxiliary kernels.

        ``algorithm.pack`` names the operands that are packed first, and ``algorithm.split_k`` is
        the number of slices of K.
        """
        return self._selection.algorithm

    @property
    def measured(self) -> Measured | None:
        """The measurement of the config with ``tune=True``; None for a predicted config."""
        return self._selection.measured

    # ---- why this kernel ------------------------------------------------------------------------

    @property
    def why(self) -> str:
        """Why this kernel and config: the predicted time, its parts, and the next candidate.

        For a measured config, the measured time, the number of configs, and the time of the
        predicted config. The last part names the source of the predictions.
        """
        return "; ".join(filter(None, (str(self.online or ""), self._why)))

    @cached_property
    def _why(self) -> str:
        candidates = self.candidates()
        text = why(candidates, self._by_name, str(self.measured or ""))
        predictions = provenance(self.gpu) if candidates[0].prediction else ""
        paired = ""
        if self.problem.epilogue.pairs:
            apart = reduces(self.config, self.problem, self.algorithm)
            by = "the reduction kernel" if apart else "the kernel itself"
            paired = f"{self.problem.epilogue.pairs} of columns are taken by {by}"
        rounded = " and ".join(self.problem.epilogue.rounds_to)
        if rounded:
            rounded = f"values are rounded to {rounded} in registers, as a program stores them"
        built = ""
        if self.instead_of:
            other = self.instead_of
            use = f"until {other} is built" if self.better else f"in place of {other}"
            built = f"already built, used {use}"
        zeros = "zeros after the last group by the same launch" * self.problem.groups.zero_tail
        said = describe_scales(self.problem), paired, zeros, rounded, built, text, predictions
        return "; ".join(filter(None, said))

    def candidates(
        self, gpu: GpuLike | None = None, *, reads_c: bool = False, within: float = inf,
        **changed: Any,
    ) -> tuple[Candidate, ...]:  # fmt: skip
        """Return the configs with their kernels and predicted times, fastest first.

        A measured config comes first.

        Parameters
        ----------
        gpu
            The GPU of the predicted times, as for `report`; by default the plan's.
        reads_c
            True predicts times for a beta other than 0. Kernel selection and the order of the
            candidates do not change.
        within
            The greatest predicted time, in multiples of the least one.
        **changed
            Options, ``kernel`` or ``problem`` in place of the plan's.

        Returns
        -------
        tuple
            The candidates, each with ``kernel``, ``config`` and ``prediction``.

        Examples
        --------
        >>> from cute_gemm import plan
        >>> p = plan("TN", m=4096, n=4096, k=4096, dtype="float16", arch="sm_90a")
        >>> first, *others = p.candidates()
        >>> first.kernel.name, first.config.tile, first.prediction.binding
        ('sm90_wgmma', (128, 256, 64), 'tensor cores')
        """
        of = None if gpu is None else known_gpu(gpu)
        return self._selection.candidates(of, reads_c=reads_c, within=within, **changed)

    def taking(self, candidate: Candidate, device: int | None = None) -> Plan:
        """Return the plan with another of its `candidates`.

        Parameters
        ----------
        candidate
            One of `candidates`.
        device
            The ordinal of the CUDA device; None for a plan that is not run.
        """
        selection = Selection(
            candidate.kernel, candidate.config, self.gpu, self._selection.candidates,
            candidate.algorithm,
        )  # fmt: skip
        return Plan(self.problem, "cpu" if device is None else "cuda", device, self.arch, selection)

    @property
    def order_of_summation(self) -> OrderOfSummation:
        """The order of summation: instructions and order by which an element of C is summed over K.

        Two plans with an equal order give the same bits for equal rows of op(A) and equal B, on one
        GPU and with one version of this package. ``print`` it for the order in words. With
        ``batch_invariant=True`` it does not depend on m.

        Examples
        --------
        >>> from cute_gemm import plan
        >>> sizes = {"n": 4096, "k": 4096, "dtype": "bfloat16", "arch": "sm_90a"}
        >>> few, many = (plan("TN", m=m, **sizes, batch_invariant=True) for m in (5, 5000))
        >>> few.order_of_summation == many.order_of_summation
        True
        """
        return OrderOfSummation.of(self._kernel, self.config, self.problem, self.algorithm)

    # ---- what the kernel is ---------------------------------------------------------------------

    @property
    def compiled(self) -> bool:
        """Whether the kernel is emitted and compiled here.

        ``"host"``, a loop in Python, and ``"cublas"``, a library, have no unit, build, launch or
        report. To ask for one raises UnsupportedError.
        """
        return self._kernel.runs_on == "gpu"

    @property
    def source(self) -> str:
        """The text of the translation unit; for ``kernel="host"`` the loop in Python."""
        return self._kernel.source(self.config)

    @property
    def steps(self) -> Steps:
        """The launches in order: each with its kernel, config, problem, unit and launch.

        Most plans launch the kernel alone. Packing kernels come before it and the reduction kernel
        of split-k after it. ``steps.scratch`` is the device memory between them, in bytes.
        """
        return self.executable.steps

    @property
    def unit(self) -> TranslationUnit:
        """The CUDA C++ translation unit of the kernel that multiplies."""
        return self.steps.main.unit

    @property
    def symbol(self) -> str:
        """The name of the kernel in the cubin, which has the config in it."""
        return str(self.config.name)

    @property
    def signature(self) -> Signature:
        """The kernel's C++ parameters."""
        return self._kernel.compiled().signature(self.config)

    @property
    def launch(self) -> Launch:
        """The CTAs, threads per CTA and bytes of dynamic shared memory of the GEMM kernel."""
        return self.steps.main.on_gpu()

    @cached_property
    def build(self) -> Build:
        """The compiled kernel, from memory, the cache or NVRTC."""
        return self.steps.main.build()

    def prepare(self) -> Future[Build]:
        """Begin to build the kernel in the background, and return the future of its build.

        NVRTC needs no GPU and lets other threads run: as many plans as there are cores build at
        once. A call of a plan that is being built waits for it.

        Examples
        --------
        >>> from cute_gemm import plan
        >>> p = plan("TN", m=64, n=64, k=64, dtype="float32", kernel="naive", arch="sm_90a")
        >>> p.prepare().result().arch
        'sm_90a'
        """
        from cute_gemm.toolchain.workers import builders

        return builders().submit(self._build)

    def _build(self) -> Build:
        return self.keep([step.build() for step in self.steps])

    def keep(self, builds: list[Build]) -> Build:
        """Keep the build of the kernel, of those of all its launches, and return it."""
        # Not the property: up to Python 3.11 all plans share its lock.
        built = self.__dict__["build"] = builds[self.steps.index]
        return built

    @property
    def built(self) -> bool:
        """Whether all its kernels are in memory or in the cache, so that nothing is compiled."""
        return all(step.built for step in self.steps)

    @cached_property
    def proof(self) -> Proof:
        """The proof that C++ CuTe computes the layouts that the unit spells, compiled at first use.

        It is another translation unit, from the same config as the kernel's. It compares tiled
        copies, fragments, layouts of shared memory, and the offsets of the report with those of
        CuTe's ``make_tiled_copy``, ``retile`` and ``partition``. CompileError names a difference.
        """
        return prove(self._kernel.compiled().proof(self.config), self.arch)

    @property
    def cubin(self) -> bytes:
        """The machine code."""
        return self.build.cubin

    @property
    def resources(self) -> Resources:
        """Registers per thread, and bytes of shared memory and of spills per thread."""
        return self.build.resources

    @property
    def ptx(self) -> str:
        """The kernel in PTX, read from the cache or compiled."""
        return self.steps.main.ptx

    @cached_property
    def sass(self) -> str:
        """The machine code as text; needs ``nvdisasm`` (``pip install 'cute-gemm[sass]'``)."""
        from cute_gemm.toolchain.sass import disassemble

        return disassemble(self.cubin)

    def report(
        self, *, gpu: GpuLike | None = None, beta: complex = 0.0, offsets: Any = None
    ) -> Report:
        """Return the analysis of every memory access of this kernel on this problem.

        Parameters
        ----------
        gpu
            The GPU of the predicted times, roofline and waves: a name (``"H200"``), a file that
            describes one, a dict of its values, or a `Gpu`; by default the plan's. The kernel and
            its config stay the plan's.
        beta
            With a value other than 0, C is read too.
        offsets
            For a grouped GEMM, on the host: the end of each group. By default groups have equal
            sizes.

        Raises
        ------
        OptionError
            For a GPU that is not known, or that does not run kernels of this architecture.

        Examples
        --------
        >>> from cute_gemm import plan
        >>> p = plan("TN", m=4096, n=4096, k=4096, dtype="float16", arch="sm_90a")
        >>> p.report()["A"].coalesced
        True
        """
        from cute_gemm.plan.report import report

        return report(self, gpu, beta, offsets)

    def replace_by(self, better: Plan) -> None:
        """Begin to build a plan that calls use in place of this one once it is built."""
        self.better = better
        self.executable.is_replaced = better.prepare().done

    # ---- running it -----------------------------------------------------------------------------

    def __call__(
        self, A: Any, B: Any, C: Any = None, *, alpha: Any = 1.0, beta: Any = 0.0,
        stream: Any = None, **operands: Any,
    ) -> Any:  # fmt: skip
        """Compute ``C <- alpha * op(A) @ op(B) + beta * C`` on arrays like those of the plan.

        Parameters
        ----------
        A, B, C
            Arrays with the extents, strides and types of the plan. By default a new C is made.
        alpha, beta
            Numbers or 0-d arrays, as for `cute_gemm.gemm`.
        stream
            A ``CUstream`` or an object that has one; by default the current stream of the library.
        **operands
            The operands of the plan's epilogue, by name.

        Returns
        -------
        array
            C, an array of the library of A.

        Raises
        ------
        ShapeError
            For an array with another shape or other strides than the plan's.
        GemmError
            A subclass for each other cause, as for `cute_gemm.gemm`.
        """
        if traced():
            of = self.problem.C
            words = self.problem.op, "C" if of.major == "N" else "F", of.dtype
            keywords = {"plan": self._number} | operands
            return as_operator(words, A, B, C, alpha, beta, stream, keywords)
        seen, last = fingerprint(A, B, C, operands), self._last
        if seen is not None and last is not None and seen[0] == last.layouts:
            result = last.again(seen[1], C, alpha, beta, stream)
            if result is not None:
                return result
        layouts = None if seen is None else seen[0]
        result, call = self.executable.compute(A, B, C, alpha, beta, stream, layouts, operands)
        self._last = call or last
        return result

    def pack(self, X: Any, name: str = "B", *, stream: Any = None) -> PackedOperand:
        """Pack an operand once, for many calls: the weights of a layer.

        Parameters
        ----------
        X
            An array with the extents, strides and types of the plan.
        name
            ``"A"`` or ``"B"``; the plan must pack it.
        stream
            As for a call. A call on another stream must wait for it.

        Returns
        -------
        PackedOperand
            The packed operand. Pass it in place of X to this plan, or to a plan for another m or n
            that packs the same operand. Such a call launches no packing kernel. Later changes of X
            have no effect.

        Raises
        ------
        OptionError
            If the plan does not pack the operand.
        ShapeError
            For an array with another shape or other strides than the plan's.

        Examples
        --------
        >>> import numpy as np
        >>> from cute_gemm import plan
        >>> A, B = np.ones((8, 5), "f2"), np.ones((5, 3), "f2")
        >>> p = plan("NN", A, B, kernel="sm80_pipeline", pack="B", backend="cpu")
        >>> weights = p.pack(B)
        >>> p(A, weights)[7, 2]
        np.float16(5.0)
        """
        return self.executable.pack(X, name, stream)

    def bind(
        self, device: int = 0, alpha: Any = 1, beta: Any = 0, kept: str = "", **numbers: float
    ) -> Callable[..., None]:
        """Return a function that launches this GEMM, given addresses ``(a, b, c)`` and a stream.

        The addresses of the epilogue's operands follow ``c``, in the order of ``problem.operands``.

        Parameters
        ----------
        device
            CUDA ordinal.
        alpha, beta
            As in a call: one on the device is read there, each time.
        kept
            Operands whose addresses are those of `PackedOperand` memory: ``"B"``.
        **numbers
            The epilogue's operands that are numbers.

        Raises
        ------
        CompileError
            If the kernel cannot be built.
        CubinError
            If the kernel cannot be loaded.
        LaunchError
            If the kernel cannot be launched.
        UnsupportedError
            For ``kernel="host"``, and for ``"cublas"`` if it is not installed.
        """
        kind = self.problem.scalar.name
        factors = scalar(alpha, "alpha", kind, device), scalar(beta, "beta", kind, device)
        check_beta(factors[1], self.problem.C, self.problem.epilogue.pairs)
        values = tuple(numbers[name] for name in self.problem.epilogue.numbers)
        return self.executable.bind(device, *factors, kept, values)

    def trace(
        self, A: Any, B: Any, C: Any = None, *, alpha: complex = 1.0, beta: complex = 0.0,
        **operands: Any,
    ) -> Trace:  # fmt: skip
        """Execute the kernel without a GPU, and compare its accesses with its report.

        The kernel is compiled to PTX, and every instruction of every thread is executed on host
        arrays. Accesses out of bounds, races in shared memory, stores of two CTAs to the same bytes
        and other faults raise an error.

        Parameters
        ----------
        A, B, C
            NumPy arrays; C is updated, and a new one is made when it is left out.
        alpha, beta
            Numbers.
        **operands
            Those of the plan's epilogue, by name: NumPy arrays or numbers.

        Returns
        -------
        Trace
            With ``result``, ``verdict`` (against float64), ``figures`` (predicted and executed),
            ``counts`` and ``requests(operand, cta, warp)``.

        Raises
        ------
        FaultError
            For a fault of the kernel; ``kind`` names it.
        PtxError
            For an instruction that is not executed here.

        Examples
        --------
        >>> import numpy as np
        >>> from cute_gemm import plan
        >>> A, B = np.ones((64, 40), "f4"), np.ones((40, 33), "f4")
        >>> p = plan("NN", A, B, kernel="smem_tiled", backend="cpu")
        >>> p.trace(A, B).agrees
        True
        """
        from cute_gemm.plan.interpreted import apart, execute
        from cute_gemm.problem.verify import verify
        from cute_gemm.report.executed import compare
        from cute_gemm.report.traced import Trace

        a, b, c, read, results = self.executable.on_host(A, B, C, beta, operands)
        before = c.copy() if beta != 0 else None
        arrays, executable = apart(read.on_host(), c), self.executable.at(read.values)
        others = list(
            execute(executable, a, b, c, alpha, beta, operands=arrays | results, record=True)
        )
        execution = others.pop(self.steps.index)
        ends = arrays.get("offsets")
        report = self.report(beta=beta, offsets=ends)
        rows = report.rows
        amax = [result.name for result in self.problem.epilogue.results if result.amax]
        # Lanes that stored rows of a group may diverge from other lanes in the next tile.
        by_lanes = [] if ends is None else ["offsets"]
        auxiliary = tuple(
            (launch.kernel, compare(launch.rows, its, amax))
            for launch, its in zip(report.auxiliary, others, strict=True)
        )
        return Trace(
            self.problem, self.symbol, self.arch, execution, rows,
            compare(rows, execution, amax, by_lanes), c,
            verify(self.problem, a, b, c, C=before, alpha=alpha, beta=beta, operands=arrays),
            auxiliary,
        )  # fmt: skip
