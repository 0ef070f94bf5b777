"""Calls captured in a CUDA graph, which starts them without pauses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from cute_gemm.run.driver import checked, entered, load_driver
from cute_gemm.run.launch import Event


class Graph:
    """Launches in order, started together and timed.

    ``calls``: functions of a stream that start work on it. The events that time them are
    nodes of the graph, so the time is that of the device alone, even if the host is late.
    """

    def __init__(self, calls: Iterable[Callable[[int], object]], device: int = 0) -> None:
        self.device = device
        self._exec: Any = None
        driver = load_driver()
        with entered(device):
            kind = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
            (self._stream,) = checked(driver.cuStreamCreate(kind), "making a stream")
            self._events = start, end = Event(device), Event(device)
            mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
            checked(driver.cuStreamBeginCapture(self._stream, mode), "beginning a graph")
            try:
                start.record_in_graph(self._stream)
                for call in calls:
                    call(int(self._stream))
                end.record_in_graph(self._stream)
            finally:
                code, graph = driver.cuStreamEndCapture(self._stream)
            checked((code,), "ending a graph")
            (self._exec,) = checked(driver.cuGraphInstantiate(graph, 0), "making a graph")
            checked(driver.cuGraphDestroy(graph), "freeing a graph")

    def milliseconds(self) -> float:
        """Start it, wait until it has ended, and return the time that the device took."""
        driver, (start, end) = load_driver(), self._events
        with entered(self.device):
            checked(driver.cuGraphLaunch(self._exec, self._stream), "starting a graph")
            checked(driver.cuStreamSynchronize(self._stream), "waiting for a graph")
        return end.since(start)

    def close(self) -> None:
        """Free the graph and its stream."""
        graph, self._exec = self._exec, None
        if graph is not None and not sys.is_finalizing():
            driver = load_driver()
            with entered(self.device):
                checked(driver.cuGraphExecDestroy(graph), "freeing a graph")
                checked(driver.cuStreamDestroy(self._stream), "freeing a stream")

    def __enter__(self) -> Graph:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
