"""Test device memory, copies in both directions, and calls with host arrays, with a fake driver."""

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fake_driver import ILLEGAL_ADDRESS, FakeDriver, install

import cute_gemm as cg
from cute_gemm.errors import LaunchError, OutOfMemoryError, StrideError
from cute_gemm.plan import reused, select
from cute_gemm.plan.executable import Executable
from cute_gemm.run import memory
from cute_gemm.run.flags import flag_of


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    yield from install(monkeypatch)


def numbered(shape: tuple[int, int], order: str = "F") -> np.ndarray:
    return np.arange(1, 1 + shape[0] * shape[1], dtype=np.int32).reshape(shape, order=order)


def batch(layout: tuple[int, ...], axes: tuple[int, ...], *window: slice) -> Any:
    """Return numbers in a buffer of this layout, and a window of it with permuted axes."""
    parent = np.arange(1, 1 + np.prod(layout), dtype=np.int32).reshape(layout)
    return parent, parent.transpose(axes)[window]


#: Layouts of matrices and batches, and the expected copies, or None.
PLACES = {
    "F": (lambda: (p := numbered((5, 7)), p[:]), None),
    "C": (lambda: (p := numbered((5, 7), "C"), p[:]), None),
    "rows of F": (lambda: (p := numbered((9, 7)), p[2:6]), None),
    "columns of F": (lambda: (p := numbered((9, 7)), p[:, 2:6]), None),
    "columns of C": (lambda: (p := numbered((9, 7), "C"), p[:, 1:4]), None),
    "one row of F": (lambda: (p := numbered((9, 7)), p[2:3]), None),
    "one column of F": (lambda: (p := numbered((9, 7)), p[:, 3:4]), None),
    "one column of C": (lambda: (p := numbered((9, 7), "C"), p[:, 3:4]), None),
    "every other of one row": (lambda: (p := numbered((9, 7)), p[2:3, ::2]), None),
    "every other of one column": (lambda: (p := numbered((9, 7), "C"), p[::2, 2:3]), None),
    "one element": (lambda: (p := numbered((9, 7)), p[3:4, 3:4]), None),
    "no rows": (lambda: (p := numbered((9, 7)), p[3:3]), None),
    "no columns": (lambda: (p := numbered((9, 7)), p[:, 3:3]), None),
    # contiguous matrices of rows or columns: one run
    "whole": (lambda: batch((3, 4, 5), (0, 1, 2)), ["1-D"]),
    "whole columns": (lambda: batch((3, 4, 5), (0, 2, 1)), ["1-D"]),
    "one": (lambda: batch((3, 4, 5), (0, 1, 2), slice(1, 2)), ["1-D"]),
    "none": (lambda: batch((3, 4, 5), (0, 1, 2), slice(0, 0)), []),
    # gaps between matrices; padded rows that continue across matrices; interleaved matrices
    "every other": (lambda: batch((5, 4, 5), (0, 1, 2), slice(0, 5, 2)), ["2-D"]),
    "rows apart": (
        lambda: batch((3, 4, 7), (0, 1, 2), slice(3), slice(4), slice(1, 5)), ["2-D"] * 3,
    ),
    "few long matrices": (
        lambda: batch((2, 9, 7), (0, 1, 2), slice(2), slice(2, 8), slice(5)), ["2-D"] * 2,
    ),
    "many flat matrices": (
        lambda: batch((9, 3, 7), (0, 1, 2), slice(9), slice(2), slice(5)), ["2-D"] * 2,
    ),
    "between each other": (lambda: batch((4, 3, 5), (1, 0, 2)), ["1-D"]),
    "between each other, apart": (
        lambda: batch((4, 3, 7), (1, 0, 2), slice(3), slice(4), slice(5)), ["2-D"] * 3,
    ),
}  # fmt: skip


class TestCopies:
    @pytest.mark.parametrize("pitch_limit", [2**31 - 1, 4])
    @pytest.mark.parametrize("name", PLACES)
    def test_there_and_back(
        self, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, name: str, pitch_limit: int
    ) -> None:
        """Test that every element has its offset, nothing else changes, and copies are few."""
        monkeypatch.setattr(memory, "_MAX_PITCH", pitch_limit)
        make, copies = PLACES[name]
        parent, window = make()
        before = parent.copy()
        with memory.upload(window) as buffer:
            for index, value in np.ndenumerate(window):
                offset = int(np.dot(index, window.strides))
                assert offset + 4 <= buffer.nbytes
                assert ctypes.c_int32.from_address(buffer.pointer + offset).value == value
            if pitch_limit > 4 and copies is not None:
                assert driver.copies == copies
            window[...] = -1
            canaries = np.where(parent == -1, before, parent + 1000)
            parent[parent != -1] += 1000
            memory.download(buffer, window)
        assert np.array_equal(parent, canaries)
        assert driver.memory == {} and driver.contexts == [0]

    def test_a_shared_matrix_is_copied_once(self, driver: FakeDriver) -> None:
        matrix = numbered((4, 5))
        for array in (np.broadcast_to(matrix, (3, 4, 5)), np.broadcast_to(matrix, (2**31, 4, 5))):
            assert memory.upload(array).nbytes == matrix.nbytes
        assert driver.copies == ["1-D"] * 2

    def test_matrices_that_slide_over_each_other_are_one_run(self, driver: FakeDriver) -> None:
        steps = [4 * step for step in (3, 1, 2)]
        array = np.lib.stride_tricks.as_strided(numbered((30, 1)), (3, 2, 4), steps)
        assert memory.upload(array).nbytes == 4 * (2 * 3 + 2 + 3 * 2)
        assert driver.copies == ["1-D"]

    def test_a_whole_array_is_one_copy(self, driver: FakeDriver) -> None:
        memory.upload(numbered((5, 7))).free()
        memory.upload(numbered((9, 7))[:, 2:6]).free()
        assert driver.copies == ["1-D", "1-D"]
        memory.upload(numbered((9, 7))[2:6]).free()
        assert driver.copies[2:] == ["2-D"]

    @pytest.mark.parametrize("step", [0, 1, 2])
    def test_rows_that_overlap_are_one_run(self, driver: FakeDriver, step: int) -> None:
        item = numbered((1, 9)).itemsize
        array = np.lib.stride_tricks.as_strided(numbered((1, 9)), (3, 4), (step * item, item))
        assert memory.upload(array).nbytes == (2 * step + 4) * item

    def test_two_strides(self, driver: FakeDriver) -> None:
        with pytest.raises(StrideError, match="one unit stride"):
            memory.upload(numbered((9, 9))[::2])
        with pytest.raises(StrideError, match="one unit stride"):
            memory.upload(numbered((9, 9))[:, ::-1])
        with pytest.raises(StrideError, match="one unit stride"):
            memory.upload(np.zeros((3, 3, 9))[..., ::2])
        with pytest.raises(StrideError, match="4 dimensions"):
            memory.upload(np.zeros((2, 2, 2, 2)))
        assert driver.memory == {}

    def test_out_of_memory_says_how_much(self, driver: FakeDriver) -> None:
        message = (
            r"^10,000,000,000 bytes \(9.3 GiB\) .* 1 \(Fake H200\), where 1,000 bytes of 2 KiB"
        )
        with pytest.raises(OutOfMemoryError, match=message):
            memory.DeviceBuffer(10**10, 1)
        assert driver.contexts == [0]

    def test_memory_goes_with_its_owner(self, driver: FakeDriver) -> None:
        buffer = memory.DeviceBuffer(16)
        assert len(driver.memory) == 1
        buffer.free()
        buffer.free()
        assert (buffer.pointer, driver.memory) == (0, {})
        buffer = memory.DeviceBuffer(0)
        assert buffer.pointer
        del buffer
        assert driver.memory == {}

    def test_a_failed_kernel_is_reported_by_the_download(self, driver: FakeDriver) -> None:
        array = numbered((2, 2))
        with memory.upload(array) as buffer:
            driver.code = ILLEGAL_ADDRESS
            with pytest.raises(LaunchError, match="waiting for the result.*700"):
                memory.download(buffer, array)


class Launched(list[tuple[int, ...]]):
    """The addresses of each launch. The kernel sets the first rows of a row-major C to 1."""

    nbytes = 0


@pytest.fixture
def launched(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Launched:
    made = Launched()

    def launch(at: tuple[int, ...]) -> None:
        made.append(at)
        ones = np.ones(made.nbytes // 4, np.float32)
        ctypes.memmove(at[2], ones.ctypes.data, ones.nbytes)

    monkeypatch.setattr(Executable, "bind", lambda self, *_: launch)
    monkeypatch.setattr(select, "gpu_of_device", lambda device: None)
    monkeypatch.setattr(reused, "plans", type(reused.plans)(64))
    return made


class TestCallsOnHostArrays:
    """Test which parts of C are copied to the device when its values must be kept."""

    @pytest.mark.parametrize(("beta", "copies"), [(0.0, 3), (2.0, 4)])
    def test_a_product(
        self, driver: FakeDriver, launched: Launched, beta: float, copies: int
    ) -> None:
        A, B, C = (np.ones((8, 8), np.float32) for _ in range(3))
        launched.nbytes = C.nbytes
        cg.gemm("NN", A, B, C, beta=beta, backend="cuda")
        assert len(launched) == 1 and driver.copies == ["1-D"] * copies

    @pytest.mark.parametrize("beta", [0.0, 2.0])
    def test_rows_of_no_group(self, driver: FakeDriver, launched: Launched, beta: float) -> None:
        """Test six of eight rows in groups. No other row may change."""
        A, B = np.ones((8, 4), np.float32), np.ones((3, 4, 8), np.float32)
        whole = np.full((12, 8), -99, np.float32)
        C, ends = whole[2:10], np.array([1, 1, 6], np.int32)
        launched.nbytes = 6 * 8 * 4
        cg.grouped_gemm("NN", A, B, ends, C, beta=beta, backend="cuda")
        assert (whole[2:8] == 1).all()
        assert (whole[:2] == -99).all() and (whole[8:] == -99).all()
        assert len(driver.copies) == 5  # A, B, offsets and C, and C back

    def test_columns_of_no_group(self, driver: FakeDriver, launched: Launched) -> None:
        A, B = np.ones((3, 8, 4), np.float32), np.ones((4, 8), np.float32)
        C, ends = np.full((8, 8), -99, np.float32, order="F"), np.array([1, 1, 6], np.int32)
        launched.nbytes = 6 * 8 * 4
        cg.grouped_gemm("NN", A, B, ends, C, backend="cuda")
        assert (C[:, :6] == 1).all() and (C[:, 6:] == -99).all()

    def test_groups_along_k_set_all(self, driver: FakeDriver, launched: Launched) -> None:
        A, B = np.ones((8, 4), np.float32), np.ones((4, 8), np.float32)
        C, ends = np.full((2, 8, 8), -99, np.float32), np.array([1, 3], np.int32)
        launched.nbytes = C.nbytes
        cg.grouped_gemm("NN", A, B, ends, C, backend="cuda")
        assert (C == 1).all()
        assert len(driver.copies) == 4


def test_a_flag_is_taken_once(driver: FakeDriver) -> None:
    """Test a flag that is 0 at first, one per device, at an address that kernels can write."""
    flag = flag_of(0)
    assert flag_of(0) is flag and flag_of(1) is not flag
    for number in (0, 7, 3):
        ctypes.c_int.from_address(flag.pointer).value = number
        assert [flag.take(), flag.take()] == [number, 0]
    assert flag_of(1).take() == 0
