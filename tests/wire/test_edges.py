"""Edges, their plans and their messages, within one process."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lograd
from lograd import InvalidType, InvalidValue, PacketError
from lograd.ops.coded import CodedTensor
from lograd.treatments import Prune, Quantize, apply, numbers_of, recipe
from lograd.wire.channel import HEAD, UNIT, Channel
from lograd.wire.edge import Edge, decode_like, edge_names, edge_sentences

CPU = torch.device("cpu")


def gradients(count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, generator=generator) * torch.randn(count, generator=generator).mul(2).exp()


def edge(name: str, seed: int = 0) -> Edge:
    sentence = edge_sentences(name, "backward", 2)["1->0"]
    assert sentence is not None
    return Edge(sentence, "gradient", 1, seed, 10, CPU)


def values(treated: Tensor | CodedTensor) -> Tensor:
    return treated.decode() if isinstance(treated, CodedTensor) else treated


# -- treatment --


@pytest.mark.parametrize("name", ["prune90", "fp8", "int4", "prune85+fp6"])
def test_an_edge_treats_as_the_sentence_does(name: str) -> None:
    one, x = edge(name), gradients(5000)
    assert one.treat(x) is x, "there are no statistics in the first step"
    one.step()
    site = one.site
    assert site is not None
    seed, numbers = int(site.key[0]), site.current_numbers()
    expected = apply(site.treatments, x, seed, numbers=numbers).result
    assert torch.equal(values(one.treat(x)), expected)
    assert not torch.equal(expected, x)


def test_quantized_tensors_leave_as_codes_and_pruned_ones_as_tensors() -> None:
    x = gradients(5000)
    for name, kind in (("fp8", CodedTensor), ("int4", CodedTensor), ("prune90", Tensor), ("prune85+fp6", Tensor)):
        one = edge(name)
        one.treat(x)
        one.step()
        assert isinstance(one.treat(x), kind)


@pytest.mark.parametrize(
    ("name", "ratio"), [("prune90", 10.0), ("fp8", 3.9), ("fp6", 5.0), ("int4", 7.5), ("identity", 0.99)]
)
def test_packets_are_small_and_exact(name: str, ratio: float) -> None:
    one, x = edge(name), gradients(1 << 15)
    one.treat(x)
    one.step()
    treated = one.treat(x)
    packet = one.packed(treated)
    assert 4 * x.numel() / packet.numel() > ratio
    assert torch.equal(decode_like(packet, x).view(torch.int32), values(treated).view(torch.int32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pruning_on_the_way_gives_the_packet_of_what_was_pruned(dtype: torch.dtype) -> None:
    one, other, x = edge("prune85"), edge("prune85"), gradients(10_000).to(dtype)
    for each in (one, other):
        each.treat(x)
        each.step()
    for _ in range(2):
        packet, treated = one.packet(x), other.treat(x)
        assert torch.equal(packet, other.packed(treated))
        assert one.treated == other.treated
    assert one.treated["zeros_after"] > 0.8 * 2 * x.numel()


@pytest.mark.parametrize("wrong", [float("inf"), float("nan")])
def test_what_is_not_finite_stays_so(wrong: float) -> None:
    one, x = edge("int4"), gradients(5000)
    one.treat(x)
    one.step()
    x[7] = wrong
    found = decode_like(one.packet(x), x)
    assert not found[7].isfinite()  # a GradScaler looks for it


@pytest.mark.parametrize("name", ["int8-full", "fp8", "int8-ptq"])
def test_activations_are_treated_with_and_without_statistics(name: str) -> None:
    sentence = edge_sentences(name, "forward", 2)["0->1"]
    assert sentence is not None
    one, x = Edge(sentence, "activations", 1, 0, 10, CPU), gradients(64 * 32).reshape(64, 32)
    for _ in range(3):
        found = decode_like(one.packet(x), x)
        one.step()
    assert not torch.equal(found, x)
    assert torch.nn.functional.cosine_similarity(found.flatten(), x.flatten(), dim=0) > 0.99


def test_random_numbers_change_with_microbatch_step_and_seed() -> None:
    x = gradients(5000)
    draws = []
    for seed in (1, 2):
        one = edge("prune80", seed)
        one.treat(x)
        for _ in range(2):
            one.step()
            draws += [values(one.treat(x)) for _ in range(2)]
    assert all(not torch.equal(a, b) for i, a in enumerate(draws) for b in draws[:i])


def test_a_held_edge_changes_nothing() -> None:
    one, x = edge("prune80"), gradients(5000)
    one.treat(x)
    one.step()
    before = {name: tensor.clone() for name, tensor in one.operand.tensors().items()}
    first, second = one.treat(x, held=True), one.treat(x, held=True)
    assert torch.equal(values(first), values(second))
    assert all(torch.equal(before[name], tensor) for name, tensor in one.operand.tensors().items())


# -- plans --


def test_edges_have_names_and_plans() -> None:
    assert edge_names("forward", 3) == ["0->1", "1->2"]
    assert edge_names("backward", 3) == ["1->0", "2->1"]
    found = edge_sentences({"2->1": "fp8", "1->0": Prune(0.9)}, "backward", 3)
    assert found == {"1->0": (Prune(0.9),), "2->1": recipe("fp8").input_gradient.gradient}
    assert edge_sentences({"2->1": "fp8"}, "backward", 3)["1->0"] is None
    assert edge_sentences(None, "backward", 3) == {"1->0": None, "2->1": None}
    assert edge_sentences("identity", "forward", 2) == {"0->1": ()}
    plan = lograd.Plan.uniform("fp8")
    assert edge_sentences(plan, "backward", 2) == edge_sentences("fp8", "backward", 2)
    layers = lograd.Plan(layers={"1->0": lograd.LayerPlan.of(recipe("fp6"))})
    assert edge_sentences(layers, "backward", 2) == edge_sentences("fp6", "backward", 2)


def test_activations_are_treated_as_the_output_says() -> None:
    found = edge_sentences("int6-full", "forward", 2)["0->1"]
    assert found == recipe("int6-full").output.activations != ()
    assert edge_sentences("fp8", "forward", 2)["0->1"] == (Quantize(lograd.FloatFormat(5, 2)),)


@pytest.mark.parametrize(
    ("plan", "kind", "words"),
    [
        ({"0->1": "fp8"}, InvalidValue, "one of 1->0"),
        ({"1->O": "fp8"}, InvalidValue, "Did you mean '1->0'"),
        (7, InvalidType, "a recipe such as 'prune90'"),
        ("prune90-cosine", InvalidValue, "belongs to the layers of one model"),
        ("int4-full-interval", None, ""),
        ("saw80", InvalidValue, "'saw80' says nothing about the gradient"),
        ("no-such", InvalidValue, "no-such"),
    ],
)
def test_plans_that_say_nothing_are_refused(plan: object, kind: type[Exception] | None, words: str) -> None:
    if kind is None:
        assert edge_sentences(plan, "backward", 2)["1->0"]  # type: ignore[arg-type]
        return
    with pytest.raises(kind, match=words.replace("(", r"\(")):
        edge_sentences(plan, "backward", 2)  # type: ignore[arg-type]


def test_numbers_follow_from_the_histogram_of_the_step_before() -> None:
    one, x = edge("prune90"), gradients(20_000)
    one.treat(x[:10_000])
    one.treat(x[10_000:])  # two microbatches give one histogram
    one.step()
    site = one.site
    assert site is not None
    statistics = lograd.treatments.Statistics(lograd.laws.Empirical.fit(x.numpy()))
    expected = numbers_of(site.treatments, statistics)[0]["threshold"]
    assert site.current_numbers()[0]["threshold"] == pytest.approx(expected, rel=0.02)


# -- messages --


def packets(*sizes: int) -> list[Tensor]:
    return [torch.arange(size, dtype=torch.int64).to(torch.uint8) for size in sizes]


def test_both_ends_find_the_same_sizes_from_what_has_passed() -> None:
    sender, receiver = Channel("1->0"), Channel("1->0")
    assert sender.size(1000) == HEAD.size + 1000
    for step in range(5):
        largest = 0
        for microbatch, packet in enumerate(packets(100 + 7 * step, 180 - step, 3)):
            size = receiver.size(1000)
            first, rest = sender.wrap(packet, 1000, microbatch)
            assert first.numel() == size == sender.size(1000)
            assert receiver.missing(first, microbatch, 1000) == (0 if rest is None else rest.numel())
            assert torch.equal(receiver.unwrap(first, rest), packet)
            largest = max(largest, packet.numel())
        sender.step()
        receiver.step()
        assert sender.state() == receiver.state()
        assert largest < sender.size(1000) - HEAD.size < 2.1 * largest + UNIT  # room for the spread of the sizes
    assert sender.count.overflows == 0
    assert sender.count.sent == receiver.count.received


def test_a_packet_that_does_not_fit_is_cut_in_two() -> None:
    sender, receiver = Channel("1->0"), Channel("1->0")
    for one in (sender, receiver):
        one.load({"capacity": UNIT, "messages": 3})
    (packet,) = packets(200)
    first, rest = sender.wrap(packet, 1000, 0)
    assert first.numel() == HEAD.size + UNIT
    assert rest is not None
    assert receiver.missing(first, 0, 1000) == rest.numel() == 200 - UNIT
    assert torch.equal(receiver.unwrap(first, rest), packet)
    assert sender.count.overflows == receiver.count.overflows == 1
    assert sender.count.sent == receiver.count.received == HEAD.size + 200


def test_every_damaged_bit_of_a_head_is_noticed() -> None:
    (packet,) = packets(20)
    first, _ = Channel("1->0").wrap(packet, 100, 2)
    for bit in range(8 * HEAD.size):
        damaged = first.clone()
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(PacketError, match="edge 1->0, microbatch 2"):
            Channel("1->0").missing(damaged, 2, 100)


def test_messages_of_another_microbatch_or_step_are_refused() -> None:
    (packet,) = packets(20)
    first, _ = Channel("1->0").wrap(packet, 100, 2)
    with pytest.raises(PacketError, match="another step or microbatch"):
        Channel("1->0").missing(first, 1, 100)
    late = Channel("1->0")
    late.load({"capacity": 0, "messages": 4})
    with pytest.raises(PacketError, match="another step or microbatch"):
        late.missing(first, 2, 100)
    with pytest.raises(PacketError, match="a packet of 20 bytes was announced"):
        Channel("1->0").missing(first, 2, 19)
