// Argument checks: every kernel refuses a tensor of the wrong size, of the wrong type or without
// memory, and refuses a shape exactly when NsaShape::Validate() does.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/nsa/branch/compressed_attention.h"
#include "kernels/nsa/branch/selected_attention.h"
#include "kernels/nsa/branch/window_attention.h"
#include "kernels/nsa/layer/projections.h"
#include "kernels/nsa/select/select_blocks.h"
#include "tests/kernels/layer.h"
#include "tests/kernels/nsa/checked_call.h"
#include "tests/testing/status_matchers.h"

namespace nsa::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

template <class Args>
Call<Args> ForwardCall(Memory& memory, int64_t k_size, int64_t v_size) {
  Call<Args> call;
  Args& a = call.args;
  a.shape = kShape;
  a.q = memory.Take(kShape.q_size());
  a.k = memory.Take(k_size);
  a.v = memory.Take(v_size);
  a.o = memory.Take(kShape.o_size());
  a.lse = memory.Take(Lse(kShape));
  a.doc_start = memory.Take(kShape.batch * kShape.seq_len, DType::kI32);
  a.keys_read = memory.Take(1, DType::kI64);
  return call;
}

// Pointers into the call, which is not moved any more.
template <class Args>
void NameForward(Call<Args>& call) {
  Args& a = call.args;
  call.inputs = {{"q", &a.q}, {"k", &a.k}, {"v", &a.v}, {"doc_start", &a.doc_start}};
  call.outputs = {{"o", &a.o}, {"lse", &a.lse}, {"keys_read", &a.keys_read}};
}

template <class Args>
Call<Args> BackwardCall(Memory& memory, int64_t k_size, int64_t v_size) {
  Call<Args> call;
  Args& a = call.args;
  a.shape = kShape;
  a.q = memory.Take(kShape.q_size());
  a.k = memory.Take(k_size);
  a.v = memory.Take(v_size);
  a.o = memory.Take(kShape.o_size());
  a.lse = memory.Take(Lse(kShape));
  a.d_o = memory.Take(kShape.o_size());
  a.dq = memory.Take(kShape.q_size());
  a.dk = memory.Take(k_size);
  a.dv = memory.Take(v_size);
  return call;
}
template <class Args>
void NameBackward(Call<Args>& call) {
  Args& a = call.args;
  call.inputs = {{"q", &a.q}, {"k", &a.k},     {"v", &a.v},
                 {"o", &a.o}, {"lse", &a.lse}, {"d_o", &a.d_o}};
  call.outputs = {{"dq", &a.dq}, {"dk", &a.dk}, {"dv", &a.dv}};
}

TEST(Check, CompressedAttention) {
  Memory memory;
  auto forward = ForwardCall<BranchArgs>(memory, kShape.cmp_k_size(), kShape.cmp_v_size());
  NameForward(forward);
  forward.run = CompressedAttention;
  ExpectEveryTensorIsChecked(forward);
  auto backward =
      BackwardCall<BranchBackwardArgs>(memory, kShape.cmp_k_size(), kShape.cmp_v_size());
  NameBackward(backward);
  backward.run = CompressedAttentionBackward;
  ExpectEveryTensorIsChecked(backward);
}

TEST(Check, WindowAttention) {
  Memory memory;
  auto forward = ForwardCall<BranchArgs>(memory, kShape.k_size(), kShape.v_size());
  NameForward(forward);
  forward.run = WindowAttention;
  ExpectEveryTensorIsChecked(forward);
  auto backward = BackwardCall<BranchBackwardArgs>(memory, kShape.k_size(), kShape.v_size());
  NameBackward(backward);
  backward.run = WindowAttentionBackward;
  ExpectEveryTensorIsChecked(backward);
}

TEST(Check, SelectedAttention) {
  Memory memory;
  std::vector<int32_t> empty(kShape.blocks_size(), -1);
  auto forward = ForwardCall<BranchArgs>(memory, kShape.k_size(), kShape.v_size());
  NameForward(forward);
  forward.args.blocks = Span(empty);
  forward.args.selection_stats = memory.Take(kSelectionStats, DType::kI64);
  forward.inputs.push_back({"blocks", &forward.args.blocks});
  forward.outputs.push_back({"selection_stats", &forward.args.selection_stats});
  forward.run = SelectedAttention;
  ExpectEveryTensorIsChecked(forward);
  auto backward = BackwardCall<BranchBackwardArgs>(memory, kShape.k_size(), kShape.v_size());
  NameBackward(backward);
  backward.args.blocks = Span(empty);
  backward.inputs.push_back({"blocks", &backward.args.blocks});
  backward.run = SelectedAttentionBackward;
  ExpectEveryTensorIsChecked(backward);
}

TEST(Check, SelectedAttentionRefusesBlocksOfTheFutureAndUnsortedOnes) {
  Memory memory;
  for (const auto& [slot, id] : {std::pair{0, 1}, std::pair{1, 3}, std::pair{2, -2}}) {
    std::vector<int32_t> blocks(kShape.blocks_size(), -1);
    blocks[slot] = id;  // of t = 0, which is in block 0
    auto call = ForwardCall<BranchArgs>(memory, kShape.k_size(), kShape.v_size());
    call.args.blocks = Span(blocks);
    EXPECT_THAT(SelectedAttention({}, call.args),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("blocks[t=0,slot=")));
  }
  std::vector<int32_t> twice(kShape.blocks_size(), -1);
  twice[0] = twice[1] = 0;
  auto call = ForwardCall<BranchArgs>(memory, kShape.k_size(), kShape.v_size());
  call.args.blocks = Span(twice);
  EXPECT_THAT(SelectedAttention({}, call.args),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ascending")));
}

TEST(Check, SelectAndChooseBlocks) {
  Memory memory;
  const int64_t scores =
      int64_t{1} * kShape.batch * kShape.seq_len * kShape.n_kv_groups * kShape.sel_blocks();
  Call<SelectBlocksArgs> select{.args = {.shape = kShape,
                                         .q = memory.Take(kShape.q_size()),
                                         .k = memory.Take(kShape.cmp_k_size()),
                                         .lse = memory.Take(Lse(kShape)),
                                         .blocks = memory.Take(kShape.blocks_size(), DType::kI32)},
                                .run = SelectBlocks};
  select.inputs = {{"q", &select.args.q}, {"k", &select.args.k}, {"lse", &select.args.lse}};
  select.outputs = {{"blocks", &select.args.blocks}};
  ExpectEveryTensorIsChecked(select);

  Call<ChooseBlocksArgs> choose{.args = {.shape = kShape,
                                         .scores = memory.Take(scores),
                                         .blocks = memory.Take(kShape.blocks_size(), DType::kI32)},
                                .run = ChooseBlocks};
  choose.inputs = {{"scores", &choose.args.scores}};
  choose.outputs = {{"blocks", &choose.args.blocks}};
  ExpectEveryTensorIsChecked(choose);
}

PhiParams TakePhi(Memory& memory) {
  const PhiSizes sizes = PhiSizesOf(kShape.l, kShape.d_k);
  return {memory.Take(sizes.pe), memory.Take(sizes.w1), memory.Take(sizes.b1),
          memory.Take(sizes.w2), memory.Take(sizes.b2)};
}

TEST(Check, Compress) {
  Memory memory;
  Call<CompressArgs> forward{.args = {.shape = kShape,
                                      .width = kShape.d_k,
                                      .phi = Phi::kMlp,
                                      .x = memory.Take(kShape.k_size()),
                                      .params = TakePhi(memory),
                                      .hidden = memory.Take(kShape.cmp_k_size()),
                                      .y = memory.Take(kShape.cmp_k_size())},
                             .run = Compress};
  PhiParams& p = forward.args.params;
  forward.inputs = {{"x", &forward.args.x}, {"params.pe", &p.pe}, {"params.w1", &p.w1},
                    {"params.b1", &p.b1},   {"params.w2", &p.w2}, {"params.b2", &p.b2}};
  forward.outputs = {{"hidden", &forward.args.hidden}, {"y", &forward.args.y}};
  ExpectEveryTensorIsChecked(forward);

  const PhiSizes sizes = PhiSizesOf(kShape.l, kShape.d_k);
  Call<CompressBackwardArgs> backward{
      .args = {.shape = kShape,
               .width = kShape.d_k,
               .phi = Phi::kMlp,
               .x = memory.Take(kShape.k_size()),
               .params = TakePhi(memory),
               .hidden = memory.Take(kShape.cmp_k_size()),
               .dy = memory.Take(kShape.cmp_k_size()),
               .d_hidden = memory.Take(kShape.cmp_k_size()),
               .dx = memory.Take(kShape.k_size()),
               .grads = {memory.Take(sizes.pe), memory.Take(sizes.w1), memory.Take(sizes.b1),
                         memory.Take(sizes.w2), memory.Take(sizes.b2)}},
      .run = CompressBackward};
  PhiGrads& g = backward.args.grads;
  backward.inputs = {
      {"x", &backward.args.x}, {"hidden", &backward.args.hidden}, {"dy", &backward.args.dy}};
  backward.outputs = {{"dx", &backward.args.dx}, {"d_hidden", &backward.args.d_hidden},
                      {"grads.pe", &g.pe},       {"grads.w1", &g.w1},
                      {"grads.b1", &g.b1},       {"grads.w2", &g.w2},
                      {"grads.b2", &g.b2}};
  ExpectEveryTensorIsChecked(backward);
}

TEST(Check, CompressKeysAndValuesRefusesTensorsOfDifferentLayers) {
  Memory memory;
  const CompressArgs keys{.shape = kShape,
                          .width = kShape.d_k,
                          .x = memory.Take(kShape.k_size()),
                          .y = memory.Take(kShape.cmp_k_size())};
  EXPECT_OK(CompressKeysAndValues({}, keys, keys));
  CompressArgs other = keys;
  other.shape.window = 1;
  EXPECT_THAT(CompressKeysAndValues({}, keys, other),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("values: shape")));
  other = keys;
  other.y.size = 1;
  EXPECT_THAT(CompressKeysAndValues({}, keys, other),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("y: ")));
}

TEST(Check, CompressRefusesAWidthThatIsNeitherKeysNorValues) {
  EXPECT_THAT(Compress({}, {.shape = kShape, .width = 64}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("width: 64")));
}

// With statistics of the rows a branch's backward needs neither o nor lse, but only on CUDA.
TEST(Check, StatisticsOfTheRowsReplaceOAndLseOnCuda) {
  Memory memory;
  auto args = BackwardCall<BranchBackwardArgs>(memory, kShape.k_size(), kShape.v_size()).args;
  args.stats = memory.Take(2 * Lse(kShape));
  EXPECT_THAT(WindowAttentionBackward({}, args),
              StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("stats: ")));
  for (ConstTensor* tensor : {&args.q, &args.k, &args.v, &args.d_o}) tensor->dtype = DType::kBf16;
  for (Tensor* tensor : {&args.dq, &args.dk, &args.dv}) tensor->dtype = DType::kBf16;
  args.o = {}, args.lse = {};
  const Exec cuda{.backend = Backend::kCuda};
  EXPECT_THAT(WindowAttentionBackward(cuda, args).message(), HasSubstr("CUDA"));  // none here
  const ConstTensor right = args.stats;
  for (const ConstTensor& wrong : Spoilt(right)) {
    args.stats = wrong;
    EXPECT_THAT(WindowAttentionBackward(cuda, args),
                StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("stats: ")));
  }
  args.stats = {};
  EXPECT_THAT(WindowAttentionBackward(cuda, args),
              StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("o: ")));
}

// Arguments of the composed layer with every tensor correct for `config` and filled with zeros.
NsaLayerArgs LayerArgs(Memory& memory, const NsaLayerConfig& config) {
  const NsaShape& s = config.shape;
  const int64_t hidden = GateHidden(s.d_k);
  NsaLayerArgs args{.config = config, .q = memory.Take(s.q_size())};
  for (int c = 0; c < kBranches; ++c) {
    args.k[c] = memory.Take(s.k_size());
    args.v[c] = memory.Take(s.v_size());
  }
  args.params.gate = {memory.Take(hidden * s.d_k), memory.Take(hidden), memory.Take(3 * hidden),
                      memory.Take(3)};
  args.o = memory.Take(s.o_size());
  args.saved = memory.Take(NsaLayerSavedBytes(config), DType::kU8);
  args.workspace = memory.Take(NsaLayerWorkspaceBytes(config), DType::kU8);
  return args;
}

TEST(Check, AttentionNamesTheTensorThatIsWrong) {
  Memory memory;
  const NsaLayerConfig config{.shape = kShape};
  const NsaLayerArgs right = LayerArgs(memory, config);
  ASSERT_OK(NsaLayer({}, right));
  const auto refused = [&](const char* name, auto spoil) {
    NsaLayerArgs args = right;
    spoil(&args);
    EXPECT_THAT(NsaLayer({}, args), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)));
  };
  refused("q: ", [](NsaLayerArgs* a) { a->q.size -= 1; });
  refused("k[0]: ", [](NsaLayerArgs* a) { a->k[kCmp].size -= 1; });
  refused("k[2]: ", [](NsaLayerArgs* a) { a->k[kWin].data = nullptr; });
  refused("v[1]: ", [](NsaLayerArgs* a) { a->v[kSel].size += 1; });
  refused("v[1]: ", [](NsaLayerArgs* a) { a->v[kSel].dtype = DType::kBf16; });
  refused("o: ", [](NsaLayerArgs* a) { a->o.size = 0; });
  refused("saved: ", [](NsaLayerArgs* a) { a->saved.size -= 64; });
  refused("saved: ",
          [](NsaLayerArgs* a) { a->saved.data = static_cast<char*>(a->saved.data) + 4; });
  refused("workspace: ", [](NsaLayerArgs* a) { a->workspace.data = nullptr; });
  refused("keys_read: ", [](NsaLayerArgs* a) { a->keys_read = a->saved; });
  refused("branches: ", [](NsaLayerArgs* a) { a->config.branches = {false, false, false}; });
  refused("k[1]: ", [](NsaLayerArgs* a) { a->config.branches = {true, false, true}; });
  refused("rope_base: ", [](NsaLayerArgs* a) { a->config.rope_base = 1; });
  refused("rope_scale: ", [](NsaLayerArgs* a) { a->config.rope_scale = -1; });
  refused("bf16", [](NsaLayerArgs* a) { a->config.dtype = DType::kBf16; });
  NsaLayerArgs on_gpu = right;
  EXPECT_THAT(NsaLayer({.backend = Backend::kCuda}, on_gpu).message(), HasSubstr("CUDA"));
}

// Only the kernels of a GPU write the gradients of the inputs side by side, and not with qk_norm.
TEST(Check, AttentionBackwardWritesOneMatrixOnAGpuOnly) {
  Memory memory;
  NsaLayerConfig config{.shape = kShape};
  const NsaLayerArgs forward = LayerArgs(memory, config);
  const int64_t tokens = int64_t{1} * kShape.batch * kShape.seq_len;
  NsaLayerBackwardArgs args{.config = config,
                            .params = forward.params,
                            .v = forward.v,
                            .o = forward.o,
                            .saved = forward.saved,
                            .workspace = forward.workspace,
                            .d_o = forward.o,
                            .wide = memory.Take(tokens * ProjectionWidth(config))};
  EXPECT_FALSE(WritesWide(config));
  EXPECT_THAT(NsaLayerBackward({}, args),
              StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("wide: given")));
  args.config.dtype = DType::kBf16;
  for (ConstTensor& v : args.v) v.dtype = DType::kBf16;
  args.o.dtype = args.d_o.dtype = args.wide.dtype = DType::kBf16;
  args.saved.size = NsaLayerSavedBytes(args.config);
  args.workspace.size = NsaLayerWorkspaceBytes(args.config);
  const Exec cuda{.backend = Backend::kCuda};
  EXPECT_TRUE(WritesWide(args.config));
  EXPECT_THAT(NsaLayerBackward(cuda, args).message(), Not(HasSubstr("wide: ")));
  const auto refused = [&](auto spoil) {
    NsaLayerBackwardArgs wrong = args;
    spoil(&wrong);
    EXPECT_THAT(NsaLayerBackward(cuda, wrong),
                StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("wide: ")));
  };
  refused([](NsaLayerBackwardArgs* a) { a->wide.size -= 1; });
  refused([](NsaLayerBackwardArgs* a) { a->wide.dtype = DType::kF32; });
  refused([](NsaLayerBackwardArgs* a) { a->rotated = true; });
  config = args.config;
  config.qk_norm = true;
  EXPECT_FALSE(WritesWide(config));
}

// On a GPU the branches read d_o itself: there is no gradient per branch.
TEST(Check, TheWorkspaceOnAGpuHasNoGradientsOfBranchOutputs) {
  NsaLayerConfig config{.shape = kShape};
  const int64_t fp32 = NsaLayerWorkspaceBytes(config);
  config.dtype = DType::kBf16;
  EXPECT_LE(NsaLayerWorkspaceBytes(config), (fp32 - 3 * 4 * kShape.o_size()) / 2 + 3 * 64);
  const Tensor memory(reinterpret_cast<void*>(64), fp32, DType::kU8);
  for (const Tensor& d_o : LayoutWorkspace(config, memory).d_o) EXPECT_FALSE(d_o.wanted());
}

// Random shapes around every limit, most of them wrong in one or two fields.
NsaShape RandomShape(std::mt19937* engine) {
  const auto pick = [&](std::initializer_list<int32_t> values) {
    return values.begin()[(*engine)() % values.size()];
  };
  NsaShape s{.batch = pick({1, 2, 1, 0}),
             .seq_len = pick({1, 3, 7, 16, 33, 40, 0}),
             .n_heads = pick({1, 2, 4, 6, 16, 17, 0}),
             .n_kv_groups = pick({1, 1, 2, 3, 0, -1}),
             .d_k = pick({16, 32, 192, 64, 24}),
             .d_v = pick({16, 32, 192, 128, 0}),
             .l = pick({1, 4, 8, 16, 6, 0}),
             .d = pick({1, 2, 4, 8, 3, 0}),
             .l_sel = pick({1, 4, 8, 16, 12, 0, 256}),
             .n_sel = pick({3, 4, 8, 64, 2, 65}),
             .window = pick({1, 4, 100, 0})};
  return s;
}

TEST(Check, KernelsAcceptAShapeExactlyWhenValidateDoes) {
  std::mt19937 engine(1);
  int accepted = 0, refused = 0;
  while (accepted < 200 || refused < 200) {
    const NsaShape s = RandomShape(&engine);
    const bool valid = s.Validate().ok();
    if (valid ? accepted >= 200 : refused >= 200) continue;
    (valid ? accepted : refused) += 1;
    Memory memory;
    NsaLayerArgs args;
    args.config.shape = s;
    if (valid) args = LayerArgs(memory, args.config);
    const absl::Status status = NsaLayer({}, args);
    EXPECT_EQ(status.ok(), valid) << s.ToString() << "\n" << status;
    if (!valid) {
      EXPECT_EQ(status.message(), s.Validate().message());
    }
  }
}

}  // namespace
}  // namespace nsa::testing
