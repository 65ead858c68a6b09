"""Attach holds no more memory than plain autograd does, and sparse products no more than is documented."""

import ctypes
import gc
import weakref

import pytest
import torch
from everyday import daily
from networks import conv_net, image_batches, mlp, vector_batches
from torch import nn
from torch.nn.functional import cross_entropy

import lograd
from lograd import Plan
from lograd.ops.sparse_products import release_workspace, sparse_convolution_backward, sparse_linear_backward

BACKENDS = ("dense", "sparse", "auto")
native = pytest.mark.skipif(not lograd.native.status().available, reason="sparse kernels are native")


def saved(model, x, labels):
    """Bytes that a forward keeps for the backward, by storage, and how many tensors it saves."""
    storages, tensors = {}, []

    def keep(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        tensors.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = cross_entropy(model(x), labels)
    return sum(storages.values()), len(tensors), loss


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("build", "batches"), [(conv_net, image_batches), (mlp, vector_batches)])
def test_a_forward_saves_what_a_plain_one_does(build, batches, backend):
    (x, labels), *rest = batches(3)
    plain_bytes, plain_tensors, _ = saved(build(), x, labels)
    model = build()
    with lograd.attach(model, Plan.uniform("prune80"), backend=backend) as handle:
        for images, classes in rest:
            cross_entropy(model(images), classes).backward()
            handle.step()
        found_bytes, found_tensors, _ = saved(model, x, labels)
    assert found_bytes <= plain_bytes
    assert found_tensors <= plain_tensors


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("plan", daily(["prune85", "prune70/prune90", "topk80", "prune80+fp6"], ["prune80+fp6"]))
def test_nothing_is_held_after_a_backward(plan, backend):
    """No gradient of an output, and no input, outlives its backward, in a layer or in the handle."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 8, 3))
    held = []

    def watch(module, inputs, output):
        held.append(weakref.ref(inputs[0]))
        output.register_hook(lambda g: held.append(weakref.ref(g)))

    hooks = [layer.register_forward_hook(watch) for layer in (model[0], model[2])]
    with lograd.attach(model, Plan.uniform(plan), backend=backend) as handle:
        for _ in range(3):
            x = torch.randn(4, 8, 9, 9, requires_grad=True)
            model(x).square().sum().backward()
            handle.step()
        del x
        gc.collect()
        assert len(held) == 12
        assert [one for one in held if one() is not None] == []
    for hook in hooks:
        hook.remove()


def peak(run):
    """Bytes of tensors that a call has at most, beyond those before it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    changes = [one.nbytes() for one in profiler.profiler.kineto_results.events() if one.name() == "[memory]"]
    total = most = 0
    for change in changes:
        total += change
        most = max(most, total)
    return most


@native
@pytest.mark.parametrize("layer", ["linear", "convolution"])
def test_a_sparse_backward_allocates_its_results_and_no_more(layer):
    """Neither a pruned copy of G nor a second one of dX, dW, x or the weight."""
    torch.manual_seed(0)
    key, threshold, everything = torch.tensor([1, 0]), torch.tensor(1.0), (True, True, True)

    def run():
        if layer == "linear":
            return sparse_linear_backward(g, x, weight, threshold, key, everything)
        return sparse_convolution_backward(g, x, weight, threshold, key, ((1, 1), (1, 1), (1, 1), 1), everything)

    if layer == "linear":
        g, x, weight = torch.randn(512, 256), torch.randn(512, 128), torch.randn(256, 128)
    else:
        g, x, weight = torch.randn(8, 32, 16, 16), torch.randn(8, 16, 16, 16), torch.randn(32, 16, 3, 3)
    results = sum(one.nbytes for one in run())
    assert results <= peak(run) <= results + 4096


# -- the workspace of the native kernels --


MALLINFO = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Allocated(ctypes.Structure):
    """struct mallinfo2 of glibc."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in MALLINFO)


def allocated():
    """Bytes that malloc has given out in this process, of all arenas."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Allocated
    found = mallinfo()
    return found.hblkhd + found.uordblks


def bound(g, weight, threads):
    """What the docstring of ops.sparse_products says, in bytes."""
    outputs, channels = weight.shape[:2]
    lists = max(g.nbytes / 4, weight.nbytes, 2**21, 16 * 512 * outputs * 9 / 8)
    packed = weight.nbytes * (9 / 8 + 64 / channels)
    return lists + packed + threads * 8 * 1027 * min(outputs, 4096) + (4 * threads + 1) * 2**20


@native
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc 2.33 counts what malloc gave")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("g", "x", "weight"),
    [
        ((2048, 3072), (2048, 768), (3072, 768)),
        ((32, 64, 32, 32), (32, 64, 32, 32), (64, 64, 3, 3)),
        ((1, 64, 112, 112), (1, 9, 224, 224), (64, 9, 7, 7)),
    ],
)
def test_the_workspace_is_bounded_and_given_back(g, x, weight, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        g, x, weight = torch.randn(g), torch.randn(x), torch.randn(weight)
        arguments = (g, x, weight, torch.tensor(2.0), torch.tensor([1, 0]))
        if weight.dim() == 2:
            sparse_linear_backward(*arguments, (True, True, True))
        else:
            stride = 2 if weight.shape[-1] == 7 else 1
            geometry = ((stride, stride), (weight.shape[-1] // 2,) * 2, (1, 1), 1)
            sparse_convolution_backward(*arguments, geometry, (True, True, True))
        with_it = allocated()
        release_workspace()
        size = with_it - allocated()
        assert 0 < size <= bound(g, weight, threads)
    finally:
        torch.set_num_threads(before)
