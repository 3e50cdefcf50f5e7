"""Undocumented JAX interfaces that the planner uses, and the count of a program's operations and memory traffic."""

import importlib
import inspect
import operator

import pytest

from tools.compile_plan import hlo


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("jax._src.compiler", "get_compile_options"),
        ("jax._src.interpreters.mlir", "make_ir_context"),
        ("jax._src.lib", "xla_client.DeviceList"),
        ("jax._src.lib", "xla_client.XlaComputation"),
        ("jax._src.lib", "xla_client._xla.mlir.xla_computation_to_mlir_module"),
        ("jax._src.cudnn.fused_attention_stablehlo", "check_cudnn_version"),
        ("jax._src.cudnn.fused_attention_stablehlo", "check_compute_capability"),
        ("jax._src.cudnn.fused_attention_stablehlo", "is_cuda_compute_capability_equal"),
        ("jaxlib.mlir.ir", "Module.parse"),
    ],
)
def test_private_names_of_jax_exist(module, names):
    pytest.importorskip("jax")
    assert callable(operator.attrgetter(names)(importlib.import_module(module)))


def test_private_arguments_of_jax_exist():
    pytest.importorskip("jax")
    compiler = importlib.import_module("jax._src.compiler")
    taken = {"num_replicas", "num_partitions", "device_assignment", "env_options_overrides", "backend"}
    assert taken <= set(inspect.signature(compiler.get_compile_options).parameters)


# As XLA's compiler for GPUs writes programs: a loop of three rounds with a product of cuBLAS, which has a workspace, a
# fusion with a small product, attention, and a convolution with the derivative of its kernel.
PROGRAM = """
HloModule jit_step, is_scheduled=true

%fused_dot (p.0: f32[4,8], p.1: f32[8,2]) -> f32[4,2] {
  %p.0 = f32[4,8]{1,0} parameter(0)
  %p.1 = f32[8,2]{1,0} parameter(1)
  ROOT %dot.1 = f32[4,2]{1,0} dot(%p.0, %p.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%body (tuple.1: (s32[], bf16[16,32])) -> (s32[], bf16[16,32]) {
  %tuple.1 = (s32[], /*index=1*/bf16[16,32]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%tuple.1), index=0
  %x = bf16[16,32]{1,0} get-tuple-element(%tuple.1), index=1
  %w = bf16[32,32]{1,0} constant({...})
  %product = (bf16[16,32]{1,0}, s8[33554432]{0}) custom-call(%x, %w), custom_call_target="__cublas$lt$matmul", \
backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],\
"rhs_contracting_dimensions":["0"]},"epilogue":"GELU"}}
  %y = bf16[16,32]{1,0} get-tuple-element(%product), index=0
  ROOT %tuple.2 = (s32[], bf16[16,32]{1,0}) tuple(%i, %y)
}

%condition (tuple.3: (s32[], bf16[16,32])) -> pred[] {
  %tuple.3 = (s32[], bf16[16,32]{1,0}) parameter(0)
  ROOT %less = pred[] constant(true)
}

%command_buffer (a.1: f32[4,8], b.1: f32[8,2]) -> f32[4,2] {
  %a.1 = f32[4,8]{1,0} parameter(0)
  %b.1 = f32[8,2]{1,0} parameter(1)
  ROOT %fusion.1 = f32[4,2]{1,0} fusion(%a.1, %b.1), kind=kLoop, calls=%fused_dot
}

ENTRY %main (a: f32[4,8], b: f32[8,2], start: (s32[], bf16[16,32])) -> f32[4,2] {
  %a = f32[4,8]{1,0} parameter(0)
  %b = f32[8,2]{1,0} parameter(1)
  %start = (s32[], bf16[16,32]{1,0}) parameter(2)
  %while.1 = (s32[], bf16[16,32]{1,0}) while(%start), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"3"}}
  %q = bf16[2,6,1,8]{3,2,1,0} parameter(3)
  %attention = (bf16[2,1,6,8]{3,1,2,0}, f32[2,1,6]{2,1,0}, u8[0]{0}) custom-call(%q, %q, %q), \
custom_call_target="__cudnn$fmhaSoftmax", \
backend_config={"cudnn_fmha_backend_config": {"intermediate_tensor_shape": \
{"element_type": "BF16", "dimensions": ["2", "1", "6", "6"]}}}
  %image = f32[2,8,8,3]{3,2,1,0} parameter(4)
  %kernel = f32[5,3,3,3]{3,2,1,0} parameter(5)
  %convolved = (f32[2,8,8,5]{3,2,1,0}, u8[1024]{0}) custom-call(%image, %kernel), window={size=3x3 pad=1_1x1_1}, \
dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$convForward"
  %d.image = f32[2,8,8,5]{3,2,1,0} get-tuple-element(%convolved), index=0
  %d.kernel = (f32[5,3,3,3]{3,2,1,0}, u8[1024]{0}) custom-call(%image, %d.image), window={size=3x3 pad=1_1x1_1}, \
dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$convBackwardFilter"
  %sum = f32[4,8]{1,0} all-reduce-start(%a), to_apply=%add
  %done = f32[4,8]{1,0} all-reduce-done(%sum)
  ROOT %call = f32[4,2]{1,0} call(%done, %b), to_apply=%command_buffer
}
"""


def test_operations_and_memory_traffic_of_a_program_are_counted():
    program = hlo.parse(PROGRAM)
    loop, small = 3 * 2 * 16 * 32 * 32, 2 * 4 * 8 * 2
    attention = 2 * (2 * 2 * 1 * 6 * 6 * 8)  # two products
    convolution = 2 * (2 * 8 * 8 * 5) * (3 * 3 * 3)
    assert program.flops == loop + small + attention + 2 * convolution
    product = 2 * (16 * 32 + 32 * 32 + 16 * 32)  # in bfloat16, without the workspace
    fused = 4 * (4 * 8 + 8 * 2 + 4 * 2)
    attended = 2 * (3 * 2 * 6 * 8 + 2 * 6 * 8) + 4 * 2 * 6
    image, kernel, result = 2 * 8 * 8 * 3, 5 * 3 * 3 * 3, 2 * 8 * 8 * 5
    summed = 4 * 2 * 4 * 8
    assert program.traffic == 3 * product + fused + attended + 2 * 4 * (image + kernel + result) + summed


# As the TPU's compiler writes programs: S(1) is the memory on the chip. A loop of three rounds reads a slice of a stack
# and writes a slice of another one. A part of `w` and all of `y` are copied to the chip.
ON_CHIP = """
HloModule jit_step, is_scheduled=true

%fused (p.0: bf16[3,8,16], p.1: s32[], p.2: bf16[3,8,16]) -> bf16[3,8,16] {
  %p.1 = s32[]{:T(128)} parameter(1)
  %p.0 = bf16[3,8,16]{2,1,0:T(8,128)(2,1)} parameter(0)
  %p.2 = bf16[3,8,16]{2,1,0:T(8,128)(2,1)} parameter(2)
  %part = bf16[1,8,16]{2,1,0:T(8,128)(2,1)} dynamic-slice(%p.0, %p.1), dynamic_slice_sizes={1,8,16}
  ROOT %update = bf16[3,8,16]{2,1,0:T(8,128)(2,1)} dynamic-update-slice(%p.2, %part, %p.1)
}

%body (tuple.1: (s32[], bf16[3,8,16], bf16[3,8,16])) -> (s32[], bf16[3,8,16], bf16[3,8,16]) {
  %tuple.1 = (s32[], bf16[3,8,16]{2,1,0}, bf16[3,8,16]{2,1,0}) parameter(0)
  %i = s32[]{:T(128)S(6)} get-tuple-element(%tuple.1), index=0
  %stack = bf16[3,8,16]{2,1,0:T(8,128)(2,1)} get-tuple-element(%tuple.1), index=1
  %saved = bf16[3,8,16]{2,1,0:T(8,128)(2,1)} get-tuple-element(%tuple.1), index=2
  %fusion.1 = bf16[3,8,16]{2,1,0:T(8,128)(2,1)} fusion(%stack, %i, %saved), kind=kLoop, calls=%fused
  ROOT %tuple.2 = (s32[], bf16[3,8,16]{2,1,0}, bf16[3,8,16]{2,1,0}) tuple(%i, %stack, %fusion.1)
}

%condition (tuple.3: (s32[], bf16[3,8,16], bf16[3,8,16])) -> pred[] {
  %limit = s32[]{:T(128)} constant(3)
  %tuple.3 = (s32[], bf16[3,8,16]{2,1,0}, bf16[3,8,16]{2,1,0}) parameter(0)
  %i.1 = s32[]{:T(128)} get-tuple-element(%tuple.3), index=0
  ROOT %less = pred[]{:T(512)} compare(%i.1, %limit), direction=LT
}

ENTRY %main (start: (s32[], bf16[3,8,16], bf16[3,8,16]), w: f32[16,12,4], y: bf16[64,4]) -> bf16[64,4] {
  %start = (s32[], bf16[3,8,16]{2,1,0}, bf16[3,8,16]{2,1,0}) parameter(0)
  %w = f32[16,12,4]{2,1,0:T(8,128)} parameter(1)
  %y = bf16[64,4]{1,0:T(8,128)(2,1)} parameter(2)
  %while.1 = (s32[], bf16[3,8,16]{2,1,0}, bf16[3,8,16]{2,1,0}) while(%start), condition=%condition, body=%body
  %slice-start.1 = ((f32[16,12,4]{2,1,0:T(8,128)}), f32[16,3,4]{2,1,0:T(8,128)S(1)}, s32[]{:S(2)}) slice-start(%w)
  %slice-done.1 = f32[16,3,4]{2,1,0:T(8,128)S(1)} slice-done(%slice-start.1)
  %joined = f32[16,12,4]{2,1,0:T(8,128)S(1)} custom-call(%slice-done.1), custom_call_target="ConcatBitcast"
  %copy-start.1 = (bf16[64,4]{1,0:T(8,128)S(1)}, bf16[64,4]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%y)
  %copy-done.1 = bf16[64,4]{1,0:T(8,128)S(1)} copy-done(%copy-start.1)
  %near = bf16[64,4]{1,0:T(8,128)S(1)} negate(%copy-done.1)
  ROOT %far = bf16[64,4]{1,0:T(8,128)} negate(%near)
}
"""


def test_on_chip_memory_traffic_is_not_counted():
    slices = 3 * 2 * 2 * 8 * 16  # read and written
    copied = 4 * 16 * 3 * 4 + 2 * 64 * 4
    indices = 3 * 4  # the number of the round, which is in yet another memory of the chip
    assert hlo.parse(ON_CHIP).traffic == slices + copied + 2 * 64 * 4
    assert hlo.parse(ON_CHIP.replace(":T(128)S(6)", "")).traffic == slices + indices + copied + 2 * 64 * 4


@pytest.mark.parametrize(
    ("inputs", "kernel", "outputs", "attributes", "products"),
    [
        # A matrix product [5, 7] x [7, 3], and one of heads: [5, (2, 4)] from [5, 7] and [7, 2, 4].
        ((5, 7), (7, 3), (5, 3), "dim_labels=bf_io->bf", 5 * 7 * 3),
        (
            (5, 1, 7),
            (7, 2, 4),
            (5, 2, 4),
            "window={size=2 pad=1_1 rhs_reversal=1}, dim_labels=b0f_i0o->b0f",
            5 * 7 * 2 * 4,
        ),
        # Patches of 2 x 2 pixels, and the derivative of the image, which is spread and padded.
        (
            *((3, 8, 8, 5), (2, 2, 5, 6), (3, 4, 4, 6)),
            "window={size=2x2 stride=2x2}, dim_labels=b01f_01io->b01f",
            3 * 16 * 4 * 30,
        ),
        (
            *((3, 4, 4, 6), (2, 2, 5, 6), (3, 8, 8, 5)),
            "window={size=2x2 pad=1_1x1_1 lhs_dilate=2x2 rhs_reversal=1x1}, dim_labels=b01f_01oi->b01f",
            3 * 16 * 4 * 30,
        ),
        # Three products of a batch, [4, 7] x [7, 2] each.
        (
            (3, 4, 7),
            (3, 7, 2),
            (3, 4, 2),
            "window={size=3 stride=2 pad=2_2 lhs_dilate=3}, dim_labels=0bf_0io->0bf",
            3 * 4 * 7 * 2,
        ),
    ],
)
def test_matrix_products_compiled_as_convolutions_are_counted(inputs, kernel, outputs, attributes, products):
    shapes = {"inputs": inputs, "kernel": kernel, "result": outputs}
    x, w, y = (f"%{name} = f32[{','.join(map(str, shape))}]" for name, shape in shapes.items())
    lines = [f"{x} parameter(0)", f"{w} parameter(1)", f"ROOT {y} convolution(%inputs, %kernel), {attributes}"]
    text = "\n  ".join(["ENTRY %main (inputs: f32[1]) -> f32[1] {", *lines])
    assert hlo.parse(text).flops == 2 * products


# As the TPU's compiler writes programs for two slices of four chips: parts of weights are gathered within a slice, in
# groups of four, and in pairs; gradients are summed within a slice, and the sums of the slices are added on the hosts.
TWO_SLICES = """
HloModule jit_step, is_scheduled=true, num_partitions=8

%all-reduce-scatter (input: f32[64,4]) -> f32[16,4] {
  %input = f32[64,4]{1,0:T(8,128)} parameter(0)
  %all-reduce.3 = f32[64,4]{1,0:T(8,128)} all-reduce(%input), channel_id=3, replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %part = f32[16,4]{1,0:T(8,128)} dynamic-slice(%all-reduce.3, %index), dynamic_slice_sizes={16,4}
}

%body (tuple.1: (bf16[16,4])) -> (bf16[16,4]) {
  %tuple.1 = (bf16[16,4]{1,0}) parameter(0)
  %x = bf16[16,4]{1,0:T(8,128)(2,1)S(1)} get-tuple-element(%tuple.1), index=0
  %pairs = bf16[32,4]{1,0} all-gather(%x), channel_id=1, replica_groups=[2,2]<=[4], dimensions={0}
  ROOT %tuple.2 = (bf16[16,4]{1,0}) tuple(%x)
}

%async_collective_fusion (w.2: bf16[16,4]) -> bf16[64,4] {
  %w.2 = bf16[16,4]{1,0} parameter(0)
  ROOT %again = bf16[64,4]{1,0} all-gather(%w.2), channel_id=2, replica_groups={{0,1,2,3}}, dimensions={0}
}

ENTRY %main (w: bf16[16,4], g: f32[64,4]) -> f32[16,4] {
  %w = bf16[16,4]{1,0} parameter(0)
  %g = f32[64,4]{1,0} parameter(1)
  %start = (bf16[16,4]{1,0}) tuple(%w)
  %while.1 = (bf16[16,4]{1,0}) while(%start), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"3"}}
  %whole = bf16[64,4]{1,0} all-gather(%w), channel_id=2, replica_groups={{0,1,2,3}}, dimensions={0}
  %under_way = bf16[64,4]{1,0} fusion(%w), kind=kCustom, calls=%async_collective_fusion
  %fusion = f32[16,4]{1,0:T(8,128)} fusion(%g), kind=kCustom, calls=%all-reduce-scatter
  %token = token[] after-all(), frontend_attributes={MegascaleRendezvousKeyName="all-reduce.1_0"}
  %send = (f32[16,4]{1,0}, u32[], token[]) send(%fusion, %token), channel_id=4, is_host_transfer=true, \
frontend_attributes={_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}
  %recv = (f32[16,4]{1,0}, u32[], token[]) recv(%token), channel_id=5, is_host_transfer=true, \
frontend_attributes={_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}
  %sent = token[] send-done(%send), channel_id=4, is_host_transfer=true
  %received = (f32[16,4]{1,0}, token[]) recv-done(%recv), channel_id=5, is_host_transfer=true
  %swapped = f32[64,4]{1,0} collective-permute(%g), channel_id=6, source_target_pairs={{0,1},{1,0}}
  ROOT %sum = f32[16,4]{1,0} get-tuple-element(%received), index=0
}
"""


def test_bytes_sent_per_device_are_counted():
    program = hlo.parse(TWO_SLICES)
    part, gradient = 2 * 16 * 4, 4 * 64 * 4
    loop = 3 * part  # its part, to the other device of a pair, three times
    gathered = 3 * part  # to the other three devices; the fusion runs while this is under way
    scattered = gradient * 3 // 4  # every part of the sum but its own
    assert program.sent == loop + gathered + scattered + gradient
    # The parts of two slices are added: each slice sends its own part.
    assert program.sent_across == gradient // 4
    assert hlo.parse(TWO_SLICES.replace("{1,2}x", "{1:4}x")).sent_across == gradient // 4 * 2 * 3 / 4
    gathers = TWO_SLICES.replace("ALL_REDUCE", "ALL_GATHER").replace("{1,2}x", "{1,2,3,4}x")
    assert hlo.parse(gathers).sent_across == gradient // 4 * 3


@pytest.mark.parametrize(
    ("groups", "others"),
    [
        ("{{0,1,2,3}}", 3),
        ("{{0,1},{2,3}}", 1),
        ("[2,2]<=[4]", 1),
        ("[2,2]<=[2,2]T(1,0)", 1),
        ("mesh['data'=4,'model'=1] {'data'}", 3),
        ("mesh['data'=2,'model'=3] {'model'}", 2),
        ("mesh['data'=2,'model'=3] {'data','model'}", 5),
        ("mesh['data'=8] {'data':(2)4}", 3),
        ("mesh['data'=2,'model'=3], device_ids=([2,3]T(1,0)) {'model'}", 2),
    ],
)
def test_every_notation_of_replica_groups_is_read(groups, others):
    text = f"""
ENTRY %main (w: f32[16,4]) -> f32[64,4] {{
  %w = f32[16,4]{{1,0}} parameter(0)
  ROOT %all = f32[64,4]{{1,0}} all-gather(%w), channel_id=1, replica_groups={groups}, dimensions={{0}}
}}
"""
    assert hlo.parse(text).sent == others * 4 * 16 * 4


def test_unknown_notation_of_replica_groups_is_not_one_device():
    with pytest.raises(ValueError, match="Received: all"):
        hlo.parse(TWO_SLICES.replace("replica_groups={{0,1,2,3}}", "replica_groups=all")).sent  # noqa: B018


def test_a_text_without_an_entry_is_not_a_program():
    with pytest.raises(ValueError, match="entry"):
        hlo.parse("HloModule nothing")


def test_collective_operations_are_counted():
    text = """
      %a = f32[8]{0} all-reduce(f32[8]{0} %x), replica_groups={{0,1}}
      %b = (f32[8]{0}, f32[8]{0}) all-reduce-start(%x)
      %c = f32[8]{0} all-reduce-done(%b)
      %all-gather.3 = f32[16]{0} all-gather(%c)
    """
    assert hlo.collectives(text) == {"all-reduce": 2, "all-gather": 1}
