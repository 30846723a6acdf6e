// Attention of new tokens over cached keys on the GPU against the branches, the selection and the
// gate on the CPU. Scratch memory and outputs start as NaN.
#include <algorithm>

#include "kernels/nsa/branch/compressed_attention.h"
#include "kernels/nsa/branch/selected_attention.h"
#include "kernels/nsa/branch/window_attention.h"
#include "kernels/nsa/decode/attend_rows.h"
#include "kernels/nsa/select/select_blocks.h"
#include "tests/kernels/cuda/device.h"
#include "tests/kernels/layer.h"

namespace nsa::testing {
namespace {

std::vector<Case> Shapes() {
  // {B, S, H, G, dk, dv, l, d, l', n, w}
  return {
      {"regular", {1, 300, 4, 2, 16, 16, 8, 4, 8, 4, 16}},
      {"m7c", {1, 1500, 12, 2, 64, 64, 32, 16, 64, 16, 512}},
      {"sixteen wide heads a group", {1, 333, 16, 1, 64, 128, 8, 4, 12, 6, 100}},
      {"widths of the paper", {1, 333, 16, 1, 192, 128, 8, 4, 12, 6, 100}},
      {"one key of 192 a group", {1, 200, 3, 3, 192, 32, 16, 2, 4, 4, 10}},
      {"keys of 192, blocks are chosen by a kernel", {1, 2200, 4, 2, 192, 16, 2, 2, 4, 40, 3}},
      {"one wide head a group", {1, 200, 3, 3, 128, 32, 16, 2, 4, 4, 10}},
      {"more selected than candidates", {1, 150, 10, 2, 32, 64, 8, 8, 16, 64, 70}},
      {"more compression blocks than a thread has", {1, 2000, 4, 2, 16, 16, 4, 4, 8, 20, 5}},
      {"blocks are chosen by a kernel", {1, 2200, 4, 2, 16, 16, 2, 2, 4, 40, 3}},
  };
}

// Every cache of a layer: keys and queries are rotated already.
struct Sequence {
  NsaLayerConfig config;
  std::vector<float> q, q_unrotated;
  std::array<std::vector<float>, kBranches> k, v;
  GateValues gate;
  std::vector<int32_t> doc_start;  // empty: no documents

  Sequence(const NsaShape& s, int mask, GateKind kind, bool documents) : config{.shape = s} {
    config.gate = kind;
    for (int c = 0; c < kBranches; ++c) config.branches[c] = (mask >> c & 1) != 0;
    q = RoundToBf16(Random(s.q_size(), 1, 2)), q_unrotated = RoundToBf16(Random(s.q_size(), 2));
    for (int c = 0; c < kBranches; ++c) {
      const int64_t rows = int64_t{1} * (c == kCmp ? s.cmp_blocks() : s.seq_len) * s.n_kv_groups;
      k[c] = RoundToBf16(Random(rows * s.d_k, 3 + c));
      v[c] = RoundToBf16(Random(rows * s.d_v, 6 + c));
    }
    gate = RandomGate(s, config.n_branches(), 9);
    for (auto* values : {&gate.fc1_w, &gate.fc1_b, &gate.fc2_w, &gate.fc2_b}) {
      *values = RoundToBf16(*values);
    }
    if (!documents) return;
    for (int t = 0; t < s.seq_len; ++t) doc_start.push_back(t - t % (s.seq_len * 2 / 3));
  }

  // o [S, H, dv], by the CPU.
  std::vector<float> Expected() const {
    const NsaShape& s = config.shape;
    const auto check = [](const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; };
    std::vector<int32_t> blocks(s.blocks_size());
    if (config.has(kSel)) {
      check(SelectBlocks({}, {.shape = s,
                              .q = Span(q),
                              .k = Span(k[kCmp]),
                              .doc_start = Span(doc_start),
                              .blocks = Span(blocks)}));
    }
    std::array<std::vector<float>, kBranches> o;
    GateArgs combine{.shape = s, .kind = config.gate, .q = Span(q_unrotated)};
    for (int c = 0; c < kBranches; ++c) {
      if (!config.branches[c]) continue;
      o[c] = Poisoned(s.o_size());
      std::vector<float> lse(s.o_size() / s.d_v);
      BranchArgs args{.shape = s, .q = Span(q), .k = Span(k[c]), .v = Span(v[c])};
      args.doc_start = Span(doc_start), args.o = Span(o[c]), args.lse = Span(lse);
      if (c == kSel) args.blocks = Span(std::as_const(blocks));
      check(c == kCmp   ? CompressedAttention({}, args)
            : c == kSel ? SelectedAttention({}, args)
                        : WindowAttention({}, args));
      combine.o_branch[c] = Span(std::as_const(o[c]));
      if (!config.has_gate()) return o[c];
    }
    std::vector<float> gates(int64_t{1} * s.seq_len * s.n_kv_groups * config.n_branches());
    std::vector<float> combined = Poisoned(s.o_size());
    combine.params = ParamsOf(gate), combine.gates = Span(gates), combine.o = Span(combined);
    check(Gate({}, combine));
    return combined;
  }
};

template <class T>
std::vector<T> Slice(const std::vector<T>& values, int64_t begin, int64_t count) {
  return {values.begin() + begin, values.begin() + begin + count};
}

// o of rows first … first + rows − 1 on the GPU, by a launch for sequences of up to `tokens`.
std::vector<float> Attend(const Sequence& sequence, int first, int rows, int tokens) {
  const NsaShape& s = sequence.config.shape;
  AttendCachedArgs args{.config = sequence.config, .tokens = tokens};
  args.config.dtype = DType::kBf16, args.config.shape.seq_len = rows;
  const int window = std::max(0, first + 1 - s.window);
  const int64_t q_width = int64_t{1} * s.n_heads * s.d_k, o_width = int64_t{1} * s.n_heads * s.d_v;
  std::vector<DeviceTensor> inputs;
  const auto put = [&](DeviceTensor tensor) -> ConstTensor {
    return inputs.emplace_back(std::move(tensor));
  };
  const auto part = [&](const std::vector<float>& values, int64_t width, int from) {
    return put(
        ToDevice(Slice(values, from * width, static_cast<int64_t>(values.size()) - from * width)));
  };
  args.q = put(ToDevice(Slice(sequence.q, first * q_width, rows * q_width)));
  args.q_unrotated = put(ToDevice(Slice(sequence.q_unrotated, first * q_width, rows * q_width)));
  std::vector<int32_t> at(1 + kBranches);
  at[0] = first, at[1 + kWin] = window;
  args.at = put(ToDevice(at));
  if (!sequence.doc_start.empty()) {
    args.doc_start = put(ToDevice(Slice(sequence.doc_start, first, rows)));
  }
  for (int c = 0; c < kBranches; ++c) {
    const int from = c == kWin ? window : 0;
    args.k[c] = part(sequence.k[c], int64_t{1} * s.n_kv_groups * s.d_k, from);
    args.v[c] = part(sequence.v[c], int64_t{1} * s.n_kv_groups * s.d_v, from);
  }
  args.gate = {put(ToDevice(sequence.gate.fc1_w)), put(ToDevice(sequence.gate.fc1_b)),
               put(ToDevice(sequence.gate.fc2_w)), put(ToDevice(sequence.gate.fc2_b))};
  const DeviceTensor scratch(AttendCachedScratchBytes(args.config, rows, tokens), DType::kU8),
      blocks(int64_t{1} * rows * s.n_kv_groups * s.n_sel, DType::kI32),
      o(rows * o_width, DType::kBf16);
  DeviceTensor keys_read(kBranches, DType::kI64);
  keys_read.Upload(std::vector<int64_t>(kBranches));
  args.scratch = scratch, args.blocks = blocks, args.o = o, args.keys_read = keys_read;
  const absl::Status status = cuda::AttendCached(Gpu::Get().exec(), args);
  EXPECT_TRUE(status.ok()) << status;
  return o.Floats();
}

class AttendRowsOnGpu : public GpuTestWith<Case> {};

TEST_P(AttendRowsOnGpu, IsTheGatedSumOfTheBranches) {
  const NsaShape& s = GetParam().shape;
  const int64_t width = int64_t{1} * s.n_heads * s.d_v;
  for (int mask = 1; mask < 8; ++mask) {
    for (const bool documents : {false, true}) {
      const Sequence sequence(s, mask, documents ? GateKind::kSigmoid : GateKind::kSoftmax,
                              documents);
      const std::vector<float> expected = sequence.Expected();
      for (const int rows : {1, 7, 64}) {
        for (const int first : {0, s.l - 1, s.seq_len / 2, s.seq_len - rows}) {
          SCOPED_TRACE(::testing::Message() << "branches " << mask << ", documents " << documents
                                            << ", " << rows << " rows from " << first);
          EXPECT_TRUE(Near("o", Attend(sequence, first, rows, first + rows),
                           Slice(expected, first * width, rows * width), 8e-3));
        }
      }
    }
  }
}

// However many rows there are, and however long the sequence may become: other kernels choose the
// blocks then, and branches have more parts.
TEST_P(AttendRowsOnGpu, HasTheBitsOfTheSameRowAmongOthers) {
  const NsaShape& s = GetParam().shape;
  const int64_t width = int64_t{1} * s.n_heads * s.d_v;
  for (int mask = 1; mask < 8; ++mask) {
    const Sequence sequence(s, mask, GateKind::kSoftmax, true);
    constexpr int kRows = 5;
    const int first = s.seq_len - kRows;
    const std::vector<float> all = Attend(sequence, first, kRows, s.seq_len);
    for (const int tokens : {s.seq_len, s.seq_len + 1, 2 * s.seq_len, 20 * s.seq_len}) {
      for (int row = 0; row < kRows; ++row) {
        SCOPED_TRACE(::testing::Message()
                     << "branches " << mask << ", row " << row << ", for " << tokens << " tokens");
        EXPECT_TRUE(Identical("o", Attend(sequence, first + row, 1, tokens),
                              Slice(all, row * width, width)));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Decode, AttendRowsOnGpu, ::testing::ValuesIn(Shapes()), CaseName());

}  // namespace
}  // namespace nsa::testing
