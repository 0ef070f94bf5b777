"""``cute-gemm kernels``: the kernels and what each supports."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from cute_gemm.commands.output import OK, print_json, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing."""


def command(arguments: argparse.Namespace) -> int:
    """Print the list; return 0."""
    from cute_gemm.api import kernels

    infos = kernels()
    if arguments.json:
        print_json({"kernels": [asdict(info) for info in infos]})
        return OK
    for info in infos:
        where = f"from compute capability {info.minimum_cc // 10}.{info.minimum_cc % 10}"
        say(f"{info.name}: {info.summary}", hang=2)
        say(f"  {'on the CPU' if info.runs_on == 'cpu' else where}")
        say(f"  dtypes   {', '.join(info.dtypes)}")
        for option, values in info.values.items():
            say(f"  --{option.replace('_', '-'):<11}  {values}")
    return OK
