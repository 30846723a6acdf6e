// The three branches and block selection on the GPU against the CPU implementation, on the same
// bf16-rounded inputs. Each case runs twice to check for equal bits.
#include <gmock/gmock.h>

#include <string_view>

#include "kernels/nsa/branch/compressed_attention.h"
#include "kernels/nsa/branch/selected_attention.h"
#include "kernels/nsa/branch/window_attention.h"
#include "kernels/nsa/select/select_blocks.h"
#include "tests/kernels/cases.h"
#include "tests/kernels/cuda/device.h"

namespace nsa::testing {
namespace {

std::vector<Case> GpuCases() {
  std::vector<Case> cases = SmallCases();
  // {B, S, H, G, dk, dv, l, d, l', n, w}
  cases.push_back({"m7c", {1, 2048, 12, 2, 64, 64, 32, 16, 64, 16, 512}});
  cases.push_back({"m7c ragged, two sequences", {2, 1111, 12, 2, 64, 64, 32, 16, 64, 16, 512}});
  cases.push_back({"wide heads", {1, 700, 8, 2, 128, 128, 32, 16, 64, 6, 256}});
  cases.push_back({"blocks of 128", {1, 900, 4, 1, 32, 64, 32, 16, 128, 4, 100}});
  cases.push_back({"one head in a group", {2, 333, 2, 2, 64, 64, 32, 16, 64, 6, 100}});
  cases.push_back({"a window without end", {1, 70, 2, 1, 16, 16, 8, 4, 8, 4, 2147483647}});
  // In tiles of 64 rows.
  cases.push_back({"wide heads, 9 n blocks", {1, 1700, 16, 1, 128, 128, 32, 16, 64, 3, 256}});
  // Few of many blocks: forward and dq by key block.
  cases.push_back({"m7c, few of many", {2, 8500, 12, 2, 64, 64, 32, 16, 64, 8, 512}});
  cases.push_back({"wide heads, few of many", {1, 3100, 8, 2, 128, 128, 32, 16, 64, 3, 256}});
  cases.push_back({"wide heads, 16 in a group", {1, 3085, 16, 1, 128, 128, 32, 16, 64, 3, 256}});
  cases.push_back({"wide heads, large union", {1, 4000, 8, 1, 128, 128, 16, 8, 8, 64, 64}});
  cases.push_back({"wide heads, two ranges", {1, 8300, 16, 1, 128, 128, 32, 16, 64, 8, 256}});
  cases.push_back({"dk is wide, dv is narrow", {1, 3075, 6, 2, 128, 16, 32, 16, 64, 3, 100}});
  cases.push_back({"dk is not dv, few of many", {2, 3075, 10, 2, 64, 32, 32, 16, 64, 3, 256}});
  cases.push_back({"blocks of 128, few of many", {1, 6209, 4, 1, 32, 64, 32, 16, 128, 3, 100}});
  cases.push_back({"blocks of 16, few of many", {1, 1300, 32, 2, 64, 64, 32, 16, 16, 5, 64}});
  // Widths of the paper: by query block in tiles of up to 192 rows and of 64, with a union of
  // blocks for which code for sm_80 takes smaller tiles, by key block, and in two ranges.
  cases.push_back(
      {"wide heads, widths of the paper", {1, 700, 16, 1, 192, 128, 32, 16, 64, 6, 256}});
  cases.push_back(
      {"wide heads, keys of 192, one in a group", {2, 333, 2, 2, 192, 128, 32, 16, 64, 6, 256}});
  cases.push_back(
      {"wide heads, keys of 192, six in a group", {1, 401, 12, 2, 192, 64, 32, 16, 64, 6, 100}});
  cases.push_back(
      {"wide heads, keys of 192, 9 n blocks", {1, 1700, 16, 1, 192, 128, 32, 16, 64, 3, 256}});
  cases.push_back(
      {"wide heads, keys of 192, large union", {1, 4000, 4, 1, 192, 128, 16, 8, 8, 64, 64}});
  cases.push_back(
      {"wide heads, keys of 192, d is l_sel", {1, 700, 16, 1, 192, 32, 128, 16, 16, 6, 64}});
  cases.push_back(
      {"wide heads, keys of 192, few of many", {2, 3100, 8, 2, 192, 128, 32, 16, 64, 3, 256}});
  cases.push_back(
      {"wide heads, keys of 192, 16 in a group", {1, 3085, 16, 1, 192, 128, 32, 16, 64, 3, 256}});
  cases.push_back(
      {"wide heads, keys of 192, two ranges", {1, 8300, 16, 1, 192, 128, 32, 16, 64, 8, 256}});
  cases.push_back({"wide heads, keys of 192, narrow values, few of many",
                   {1, 3075, 6, 2, 192, 16, 32, 16, 64, 3, 100}});
  cases.push_back(
      {"wide heads, keys of 192, blocks of 128", {1, 6209, 4, 1, 192, 64, 32, 16, 128, 3, 100}});
  cases.push_back({"long lists", {1, 5000, 2, 1, 16, 16, 32, 16, 64, 8, 64}});
  cases.push_back({"S = 65,536", {1, 65536, 1, 1, 16, 16, 32, 16, 64, 4, 128}});
  return cases;
}

// Shapes that differ for block selection only: several rounds of 128 compressed keys, lists of best
// blocks around and above the 32 lanes of a warp, and blocks of 4, 8 and other numbers of strides.
std::vector<Case> SelectionCases() {
  return {
      {"six heads, ten rounds", {1, 20000, 6, 1, 64, 64, 32, 16, 64, 16, 512}},
      {"one whole round of keys", {1, 2064, 6, 1, 64, 64, 32, 16, 64, 16, 512}},
      {"a round and a key", {2, 2080, 6, 1, 64, 64, 32, 16, 64, 16, 512}},
      {"a list of 32", {1, 5000, 6, 1, 64, 64, 32, 16, 64, 35, 512}},
      {"a list of 33", {1, 5000, 5, 1, 32, 32, 32, 16, 64, 36, 512}},
      {"a list of 61", {1, 9000, 6, 1, 64, 64, 32, 16, 64, 64, 512}},
      {"eight strides, n is 8", {1, 9000, 12, 2, 64, 64, 32, 16, 128, 8, 512}},
      {"eight strides, a list of 37", {1, 9000, 2, 1, 64, 64, 32, 16, 128, 40, 512}},
      {"eight strides, keys of 128, odd heads", {1, 5000, 3, 1, 128, 128, 32, 16, 128, 5, 512}},
      {"eight strides, keys of 192", {1, 5000, 16, 1, 192, 128, 32, 16, 128, 5, 512}},
      {"eight strides, keys of 16, one head", {1, 5000, 1, 1, 16, 16, 32, 16, 128, 5, 512}},
      {"blocks of 32, stride of 8", {1, 3000, 8, 2, 16, 16, 16, 8, 32, 8, 64}},
      {"blocks of 64, stride of 8", {1, 3000, 8, 2, 32, 32, 16, 8, 64, 8, 64}},
      {"blocks of 2 strides, a list of 61", {1, 4000, 12, 2, 64, 64, 32, 16, 32, 64, 512}},
      {"l is 4 d", {1, 3000, 12, 2, 64, 64, 64, 16, 64, 8, 512}},
  };
}

struct Inputs {
  std::vector<float> q, k, v, d_o;
  std::vector<int32_t> doc_start;
};

// A new document starts every 37 tokens, or a second one at S / 7.
enum class Documents { kNone, kShort, kTwo };

int32_t DocumentOf(const NsaShape& s, Documents documents, int32_t t) {
  if (documents == Documents::kShort) return t / 37 * 37;
  return t < s.seq_len / 7 ? 0 : s.seq_len / 7;
}

// Inputs with `keys` rows of keys.
Inputs RandomInputs(const NsaShape& s, int64_t keys, Documents documents) {
  const int64_t kv = int64_t{1} * s.batch * keys * s.n_kv_groups;
  Inputs in{RoundToBf16(Random(s.q_size(), 1, 2)),
            RoundToBf16(Random(kv * s.d_k, 2, 2)),
            RoundToBf16(Random(kv * s.d_v, 3)),
            RoundToBf16(Random(s.o_size(), 4)),
            {}};
  if (documents == Documents::kNone) return in;
  for (int64_t i = 0; i < int64_t{1} * s.batch * s.seq_len; ++i) {
    in.doc_start.push_back(DocumentOf(s, documents, static_cast<int32_t>(i % s.seq_len)));
  }
  return in;
}

std::span<const float> View(const std::vector<float>& v) { return v; }
std::span<float> View(std::vector<float>& v) { return v; }
std::span<const int32_t> View(const std::vector<int32_t>& v) { return v; }
std::span<int32_t> View(std::vector<int32_t>& v) { return v; }

struct Forward {
  std::vector<float> o, lse;
  int64_t keys_read = -1;
};
struct Backward {
  std::vector<float> dq, dk, dv;
};

// One branch's functions and argument types.
struct Window {
  using Args = BranchArgs;
  using BackwardArgs = BranchBackwardArgs;
  static constexpr auto kForward = WindowAttention;
  static constexpr auto kBackward = WindowAttentionBackward;
  static int64_t Keys(const NsaShape& s) { return s.seq_len; }
};
struct Compressed {
  using Args = BranchArgs;
  using BackwardArgs = BranchBackwardArgs;
  static constexpr auto kForward = CompressedAttention;
  static constexpr auto kBackward = CompressedAttentionBackward;
  static int64_t Keys(const NsaShape& s) { return s.cmp_blocks(); }
};
struct Selected {
  using Args = BranchArgs;
  using BackwardArgs = BranchBackwardArgs;
  static constexpr auto kForward = SelectedAttention;
  static constexpr auto kBackward = SelectedAttentionBackward;
  static int64_t Keys(const NsaShape& s) { return s.seq_len; }
};

template <class Branch>
class BranchRun {
 public:
  BranchRun(const NsaShape& shape, bool documents)
      : s_(shape),
        in_(RandomInputs(shape, Branch::Keys(shape),
                         documents ? Documents::kShort : Documents::kNone)) {
    if constexpr (std::is_same_v<Branch, Selected>) {
      scores_ = Random(int64_t{1} * s_.batch * s_.seq_len * s_.n_kv_groups * s_.sel_blocks(), 9);
      blocks_.resize(s_.blocks_size());
      EXPECT_TRUE(ChooseBlocks({}, {.shape = s_,
                                    .scores = View(scores_),
                                    .doc_start = View(in_.doc_start),
                                    .blocks = View(blocks_)})
                      .ok());
    }
  }

  void CpuForward() {
    f_ = {Poisoned(s_.o_size()), Poisoned(Rows()), -1};
    typename Branch::Args args{.shape = s_, .q = View(in_.q), .k = View(in_.k), .v = View(in_.v)};
    args.doc_start = View(in_.doc_start);
    args.o = View(f_.o), args.lse = View(f_.lse);
    args.keys_read = std::span<int64_t>(&f_.keys_read, 1);
    if constexpr (std::is_same_v<Branch, Selected>) args.blocks = View(blocks_);
    const absl::Status status = Branch::kForward({}, args);
    ASSERT_TRUE(status.ok()) << status;
  }

  void CompareGpu() {
    CpuForward();
    CpuBackward(in_.d_o, &b_);
    const DeviceTensor q = ToDevice(in_.q), k = ToDevice(in_.k), v = ToDevice(in_.v),
                       d_o = ToDevice(in_.d_o);
    const DeviceTensor doc = ToDevice(in_.doc_start), blocks = ToDevice(blocks_);
    std::vector<bf16> first_o, first_dq, first_dk, first_dv;
    for (int run = 0; run < 2; ++run) {
      const DeviceTensor o(s_.o_size(), DType::kBf16), lse(Rows(), DType::kF32),
          keys_read(1, DType::kI64);
      typename Branch::Args args{.shape = s_, .q = q, .k = k, .v = v};
      args.doc_start = doc, args.o = o, args.lse = lse, args.keys_read = keys_read;
      if constexpr (std::is_same_v<Branch, Selected>) args.blocks = blocks;
      const absl::Status status = Branch::kForward(Gpu::Get().exec(), args);
      ASSERT_TRUE(status.ok()) << status;
      const DeviceTensor dq(s_.q_size(), DType::kBf16), dk(in_.k.size(), DType::kBf16),
          dv(in_.v.size(), DType::kBf16);
      typename Branch::BackwardArgs back;
      back.shape = s_;
      back.q = q, back.k = k, back.v = v, back.doc_start = doc, back.o = o, back.lse = lse,
      back.d_o = d_o;
      back.dq = dq, back.dk = dk, back.dv = dv;
      if constexpr (std::is_same_v<Branch, Selected>) back.blocks = blocks;
      const absl::Status status_back = Branch::kBackward(Gpu::Get().exec(), back);
      ASSERT_TRUE(status_back.ok()) << status_back;
      if (run == 0) {
        EXPECT_TRUE(Near("o", o.Floats(), f_.o, kBf16Output));
        EXPECT_TRUE(Near("lse", lse.Floats(), f_.lse, 1e-5, 1e-4));
        EXPECT_EQ(keys_read.template Raw<int64_t>()[0], f_.keys_read);
        EXPECT_TRUE(Near("dq", dq.Floats(), b_.dq, kBf16Gradient, 1e-4));
        EXPECT_TRUE(Near("dk", dk.Floats(), b_.dk, kBf16Gradient, 1e-4));
        EXPECT_TRUE(Near("dv", dv.Floats(), b_.dv, kBf16Gradient, 1e-4));
        first_o = o.template Raw<bf16>(), first_dq = dq.template Raw<bf16>();
        first_dk = dk.template Raw<bf16>(), first_dv = dv.template Raw<bf16>();
        back.add_to_dq = true;
        ASSERT_TRUE(Branch::kBackward(Gpu::Get().exec(), back).ok());
        std::vector<float> twice = b_.dq;
        for (float& x : twice) x *= 2;
        EXPECT_TRUE(Near("dq added twice", dq.Floats(), twice, kBf16Gradient, 2e-4));
      } else {
        EXPECT_TRUE(Identical("o", o.template Raw<bf16>(), first_o));
        EXPECT_TRUE(Identical("dq", dq.template Raw<bf16>(), first_dq));
        EXPECT_TRUE(Identical("dk", dk.template Raw<bf16>(), first_dk));
        EXPECT_TRUE(Identical("dv", dv.template Raw<bf16>(), first_dv));
      }
    }
  }

  // The gradients of gate · o, from d_o and statistics of the rows that contain the gate, without o
  // and lse (gate.h).
  void CompareGpuBehindAGate() {
    CpuForward();
    const std::vector<float> gates = Gates();
    std::vector<float> d_branch = in_.d_o;
    for (size_t i = 0; i < d_branch.size(); ++i) d_branch[i] *= gates[i / (Heads() * s_.d_v)];
    Backward want;
    CpuBackward(d_branch, &want);
    const DeviceTensor q = ToDevice(in_.q), k = ToDevice(in_.k), v = ToDevice(in_.v),
                       d_o = ToDevice(in_.d_o), doc = ToDevice(in_.doc_start),
                       blocks = ToDevice(blocks_), o(s_.o_size(), DType::kBf16),
                       lse(Rows(), DType::kF32);
    typename Branch::Args args{.shape = s_, .q = q, .k = k, .v = v};
    args.doc_start = doc, args.o = o, args.lse = lse;
    typename Branch::BackwardArgs back{.shape = s_, .q = q, .k = k, .v = v};
    back.doc_start = doc, back.d_o = d_o;
    if constexpr (std::is_same_v<Branch, Selected>) args.blocks = back.blocks = blocks;
    ASSERT_TRUE(Branch::kForward(Gpu::Get().exec(), args).ok());
    const DeviceTensor stats = ToDeviceF32(Statistics(gates, o.Floats(), lse.Floats()));
    back.stats = stats;
    ExpectOnGpu({{"dq", want.dq, DType::kBf16, kBf16Gradient, 1e-4},
                 {"dk", want.dk, DType::kBf16, kBf16Gradient, 1e-4},
                 {"dv", want.dv, DType::kBf16, kBf16Gradient, 1e-4}},
                [&](const std::vector<DeviceTensor>& t) {
                  back.dq = t[0], back.dk = t[1], back.dv = t[2];
                  return Branch::kBackward(Gpu::Get().exec(), back);
                });
  }

 private:
  int64_t Rows() const { return int64_t{1} * s_.batch * s_.seq_len * s_.n_heads; }
  int64_t Heads() const { return s_.heads_per_group(); }

  void CpuBackward(const std::vector<float>& d_o, Backward* out) {
    *out = {Poisoned(s_.q_size()), Poisoned(in_.k.size()), Poisoned(in_.v.size())};
    typename Branch::BackwardArgs back;
    back.shape = s_;
    back.q = View(in_.q), back.k = View(in_.k), back.v = View(in_.v),
    back.doc_start = View(in_.doc_start);
    back.o = View(std::as_const(f_.o)), back.lse = View(std::as_const(f_.lse));
    back.d_o = View(d_o);
    back.dq = View(out->dq), back.dk = View(out->dk), back.dv = View(out->dv);
    if constexpr (std::is_same_v<Branch, Selected>) back.blocks = View(blocks_);
    const absl::Status status = Branch::kBackward({}, back);
    ASSERT_TRUE(status.ok()) << status;
  }

  // One per (token, group), in [0, 1]; every fifth is 0, every seventh tiny.
  std::vector<float> Gates() const {
    std::vector<float> gates = Random(Rows() / Heads(), 12);
    for (size_t i = 0; i < gates.size(); ++i) {
      gates[i] = i % 5 == 0 ? 0.0f : i % 7 == 0 ? 1e-30f : std::abs(gates[i]);
    }
    return gates;
  }

  // BranchBackwardArgs::stats of every row.
  std::vector<float> Statistics(const std::vector<float>& gates, const std::vector<float>& o,
                                const std::vector<float>& lse) const {
    std::vector<float> stats;
    for (int64_t row = 0; row < Rows(); ++row) {
      double delta = 0;
      for (int64_t i = row * s_.d_v; i < (row + 1) * s_.d_v; ++i) delta += in_.d_o[i] * o[i];
      const double gate = gates[row / Heads()];
      stats.push_back(static_cast<float>(lse[row] / std::log(2.0) - std::log2(gate)));
      stats.push_back(static_cast<float>(delta));
    }
    return stats;
  }

  const NsaShape s_;
  const Inputs in_;
  std::vector<float> scores_;
  std::vector<int32_t> blocks_;
  Forward f_;
  Backward b_;
};

class BranchOnGpu : public GpuTestWith<Case> {};

template <class Branch>
void RunBranchBehindAGate(const NsaShape& shape) {
  BranchRun<Branch>(shape, /*documents=*/false).CompareGpuBehindAGate();
}

template <class Branch>
void RunBranch(const NsaShape& shape) {
  for (const bool documents : {false, true}) {
    if (documents && shape.seq_len > 10000) continue;
    SCOPED_TRACE(documents ? "with documents" : "without documents");
    BranchRun<Branch>(shape, documents).CompareGpu();
  }
}

TEST_P(BranchOnGpu, WindowEqualsTheCpuTruth) { RunBranch<Window>(GetParam().shape); }
TEST_P(BranchOnGpu, CompressedEqualsTheCpuTruth) {
  if (GetParam().shape.cmp_blocks() == 0) return;
  RunBranch<Compressed>(GetParam().shape);
}
TEST_P(BranchOnGpu, SelectedEqualsTheCpuTruth) { RunBranch<Selected>(GetParam().shape); }

// With the statistics of the rows given, as the gate's backward writes them.
TEST_P(BranchOnGpu, WindowBehindAGateEqualsTheCpuTruth) {
  RunBranchBehindAGate<Window>(GetParam().shape);
}
TEST_P(BranchOnGpu, CompressedBehindAGateEqualsTheCpuTruth) {
  if (GetParam().shape.cmp_blocks() == 0) return;
  RunBranchBehindAGate<Compressed>(GetParam().shape);
}
TEST_P(BranchOnGpu, SelectedBehindAGateEqualsTheCpuTruth) {
  RunBranchBehindAGate<Selected>(GetParam().shape);
}

TEST_P(BranchOnGpu, SelectionStatisticsEqualTheCpus) {
  const NsaShape& s = GetParam().shape;
  const std::vector<float> scores =
      Random(int64_t{1} * s.batch * s.seq_len * s.n_kv_groups * s.sel_blocks(), 9);
  const Inputs in = RandomInputs(s, s.seq_len, Documents::kNone);
  std::vector<int32_t> blocks(s.blocks_size());
  ASSERT_TRUE(ChooseBlocks({}, {.shape = s, .scores = View(scores), .blocks = View(blocks)}).ok());
  std::vector<float> o(s.o_size()), lse(int64_t{1} * s.batch * s.seq_len * s.n_heads);
  std::array<int64_t, kSelectionStats> want{};
  ASSERT_TRUE(SelectedAttention({}, {.shape = s,
                                     .q = View(in.q),
                                     .k = View(in.k),
                                     .v = View(in.v),
                                     .blocks = View(blocks),
                                     .o = View(o),
                                     .lse = View(lse),
                                     .selection_stats = std::span<int64_t>(want)})
                  .ok());
  const DeviceTensor q = ToDevice(in.q), k = ToDevice(in.k), v = ToDevice(in.v),
                     ids = ToDevice(blocks);
  const DeviceTensor o_gpu(s.o_size(), DType::kBf16), lse_gpu(lse.size(), DType::kF32),
      stats(kSelectionStats, DType::kI64);
  ASSERT_TRUE(SelectedAttention(Gpu::Get().exec(), {.shape = s,
                                                    .q = q,
                                                    .k = k,
                                                    .v = v,
                                                    .blocks = ids,
                                                    .o = o_gpu,
                                                    .lse = lse_gpu,
                                                    .selection_stats = stats})
                  .ok());
  EXPECT_THAT(stats.Raw<int64_t>(), ::testing::ElementsAreArray(want));
}

// The same scores give the same blocks on CPU and GPU, for any scores: equal ones, NaN, infinities,
// zeros of both signs.
TEST_P(BranchOnGpu, EqualScoresGiveTheSameChoice) {
  const NsaShape& s = GetParam().shape;
  std::vector<float> scores =
      Random(int64_t{1} * s.batch * s.seq_len * s.n_kv_groups * s.sel_blocks(), 11);
  const float special[] = {0.0f, -0.0f, NAN, INFINITY, -INFINITY, 0.5f, 0.5f, 0.5f};
  for (size_t i = 0; i < scores.size(); i += 3) scores[i] = special[i / 3 % 8];
  std::vector<int32_t> want(s.blocks_size());
  ASSERT_TRUE(ChooseBlocks({}, {.shape = s, .scores = View(scores), .blocks = View(want)}).ok());
  const DeviceTensor scores_gpu = ToDeviceF32(scores), blocks(s.blocks_size(), DType::kI32);
  const absl::Status status =
      ChooseBlocks(Gpu::Get().exec(), {.shape = s, .scores = scores_gpu, .blocks = blocks});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(Identical("blocks", blocks.Raw<int32_t>(), want));
}

int64_t ScoresSize(const NsaShape& s) {
  return int64_t{1} * s.batch * s.seq_len * s.n_kv_groups * s.sel_blocks();
}

std::vector<float> LseOnCpu(const NsaShape& s, const Inputs& in) {
  std::vector<float> o(s.o_size()), lse(int64_t{1} * s.batch * s.seq_len * s.n_heads);
  EXPECT_TRUE(CompressedAttention({}, {.shape = s,
                                       .q = View(in.q),
                                       .k = View(in.k),
                                       .v = View(in.v),
                                       .doc_start = View(in.doc_start),
                                       .o = View(o),
                                       .lse = View(lse)})
                  .ok());
  return lse;
}

std::vector<float> ScoresOnCpu(const NsaShape& s, const Inputs& in) {
  std::vector<float> scores = Poisoned(ScoresSize(s));
  std::vector<int32_t> blocks(s.blocks_size());
  EXPECT_TRUE(SelectBlocks({}, {.shape = s,
                                .q = View(in.q),
                                .k = View(in.k),
                                .doc_start = View(in.doc_start),
                                .blocks = View(blocks),
                                .scores = View(scores)})
                  .ok());
  return scores;
}

// Chooses blocks twice with scores, which must have the same bits, and once without. Each choice
// must be what the CPU chooses from these scores, which are returned. An empty `lse` is not given.
std::vector<float> CheckedScores(const NsaShape& s, const Inputs& in,
                                 const std::vector<float>& lse) {
  const DeviceTensor q = ToDevice(in.q), k = ToDevice(in.k), lse_gpu = ToDeviceF32(lse),
                     doc = ToDevice(in.doc_start);
  std::vector<float> first;
  std::vector<int32_t> demanded(s.blocks_size());
  for (const std::string_view run : {"first", "second", "without scores"}) {
    SCOPED_TRACE(run);
    const DeviceTensor chosen(s.blocks_size(), DType::kI32), scores(ScoresSize(s), DType::kF32);
    SelectBlocksArgs args{.shape = s, .q = q, .k = k, .doc_start = doc, .blocks = chosen};
    if (!lse.empty()) args.lse = lse_gpu;
    if (run != "without scores") args.scores = scores;
    const absl::Status status = SelectBlocks(Gpu::Get().exec(), args);
    EXPECT_TRUE(status.ok()) << status;
    if (run == "first") {
      first = scores.Floats();
      EXPECT_TRUE(ChooseBlocks({}, {.shape = s,
                                    .scores = View(first),
                                    .doc_start = View(in.doc_start),
                                    .blocks = View(demanded)})
                      .ok());
    }
    if (run == "second") {
      EXPECT_TRUE(Identical("scores", scores.Floats(), first));
    }
    EXPECT_TRUE(Identical("blocks", chosen.Raw<int32_t>(), demanded));
  }
  return first;
}

// Scores agree within the rounding of bf16 products, with and without the compressed branch's lse,
// and the choice follows from the GPU's own scores.
void RunSelection(const NsaShape& s) {
  for (const Documents documents : {Documents::kNone, Documents::kShort, Documents::kTwo}) {
    SCOPED_TRACE(::testing::Message() << "documents " << static_cast<int>(documents));
    const Inputs in = RandomInputs(s, s.cmp_blocks(), documents);
    const std::vector<float> want = ScoresOnCpu(s, in);
    EXPECT_TRUE(Near("with lse", CheckedScores(s, in, LseOnCpu(s, in)), want, 1e-4, 1e-5));
    EXPECT_TRUE(Near("without lse", CheckedScores(s, in, {}), want, 1e-4, 1e-5));
  }
}

TEST_P(BranchOnGpu, ScoresEqualTheCpuTruthAndDecideTheChoice) {
  if (GetParam().shape.seq_len > 10000) return;
  RunSelection(GetParam().shape);
}

class SelectionOnGpu : public BranchOnGpu {};

TEST_P(SelectionOnGpu, ScoresEqualTheCpuTruthAndDecideTheChoice) { RunSelection(GetParam().shape); }

// Keys that are all zero give equal scores, so the lowest blocks win. Every seventh token's queries
// are NaN, and so are its scores.
TEST_P(SelectionOnGpu, EqualAndMissingScoresAreRankedAsOnTheCpu) {
  const NsaShape& s = GetParam().shape;
  Inputs in = RandomInputs(s, s.cmp_blocks(), Documents::kTwo);
  std::fill(in.k.begin(), in.k.end(), 0.0f);
  const int64_t row = int64_t{1} * s.n_heads * s.d_k;
  for (int64_t i = 0; i < static_cast<int64_t>(in.q.size()); i += 7 * row) {
    std::fill_n(in.q.begin() + i, row, NAN);
  }
  CheckedScores(s, in, {});
}

INSTANTIATE_TEST_SUITE_P(Shapes, SelectionOnGpu, ::testing::ValuesIn(SelectionCases()), CaseName());
INSTANTIATE_TEST_SUITE_P(Shapes, BranchOnGpu, ::testing::ValuesIn(GpuCases()), CaseName());

}  // namespace
}  // namespace nsa::testing
