"""Temporary: variants of the sums of a data-parallel step."""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time

import numpy as np

import volta_fn as vf
from benchmarks.gpu.collectives import Gpus, training_call
from benchmarks.gpu.parallel import split_call, states_call
from benchmarks.machine import use_gpu
from benchmarks.workloads import named
from volta_fn.compiler.passes import dce
from volta_fn.targets.nvidia import driver as nv
from volta_fn.targets.nvidia import matmul as products
from volta_fn.targets.nvidia.peers import kernels
from volta_fn.targets.wgsl.target import RoutineCache

BASE, BUCKET = kernels.SCHEDULE, dce._DEVICE_BUCKET
original = nv.NvidiaDriver.compile
carve = 0
factor = 1.0
dispatched = products.dispatch_of


def dispatch_of(product, schedule, results, buffers, stores, capabilities):
    dispatch = dispatched(product, schedule, results, buffers, stores, capabilities)
    if not isinstance(schedule, products.Schedule) or schedule.turns or factor == 1.0:
        return dispatch
    down, across = products.tiles(product, schedule)
    total = down * across * product.batch * schedule.splits
    return dataclasses.replace(dispatch, groups=(min(total, int(capabilities.processors * schedule.residents * factor)), 1, 1))


products.dispatch_of = dispatch_of


def compiled(self, source, count, written, checks, *, is_checked=False):
    kernel, header = original(self, source, count, written, checks, is_checked=is_checked)
    if carve and header is not None and header.peers:
        with self.context:
            status = self.functions.cuFuncSetAttribute(kernel.function, 9, carve)
            assert not status, status
    return kernel, header


nv.NvidiaDriver.compile = compiled


def main():
    global carve, factor
    name, *variants = sys.argv[1:]
    use_gpu()
    if name.isdigit():
        n, name, variants = int(name), variants[0], variants[1:]
        gpus = Gpus(n, range(n))
    else:
        vf.distributed.initialize()
        n = vf.process_count()
        gpus = Gpus(n, (vf.process_index(),)) if n > 1 else Gpus(1, (0,))
    examples = named(name).size["batch"]
    for variant in variants:
        begun = time.perf_counter()
        options = dict(part.split("=") for part in variant.split(",") if "=" in part)
        carve = int(options.pop("carve", 0))
        beside = int(options.pop("beside", 0))
        dce._DEVICE_BUCKET = int(float(options.pop("bucket", BUCKET >> 20)) * (1 << 20))
        factor = float(options.pop("grid", 1))
        way = options.pop("way", "data")
        kernels.SCHEDULE = BASE._replace(**{k: int(v) for k, v in options.items()})
        kernels.BESIDE_ON = beside
        for device in vf.local_devices(backend="gpu")[:n]:
            device.backend.gpu.routines = RoutineCache()
        if way == "alone":
            call = training_call(name, Gpus(1, (0,)), examples)
        elif way != "data":
            call = {"split": split_call, "states": states_call}[way](named(name), gpus, examples)
        else:
            call = training_call(name, gpus, examples)
        losses = [float(np.asarray(vf.tree.leaves(call())[-1])) for _ in range(3)]
        for _ in range(20):
            call()
        samples = []
        for _ in range(7):
            vf.block_until_ready(call())
            start = time.perf_counter()
            for _ in range(30):
                loss = call()
            vf.block_until_ready(loss)
            samples.append((time.perf_counter() - start) / 30)
        if gpus.is_first:
            seconds = time.perf_counter() - begun
            print(f"{variant:44s} {statistics.median(samples) * 1e3:8.3f} ms least {min(samples) * 1e3:.3f}; {losses} in {seconds:.0f} s", flush=True)


main()
