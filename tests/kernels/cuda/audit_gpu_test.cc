// The audit of the attention on the GPU against the CPU implementation. Outputs start as NaN, and
// each case runs twice to check for equal bits.
#include <cstring>

#include "kernels/nsa/audit/audit.h"
#include "kernels/nsa/select/select_blocks.h"
#include "tests/kernels/cuda/device.h"
#include "tests/kernels/layer.h"

namespace nsa::testing {
namespace {

using Tensors = std::vector<DeviceTensor>;

std::vector<Case> Shapes() {
  std::vector<Case> cases = SmallCases();
  // {B, S, H, G, dk, dv, l, d, l', n, w}
  cases.push_back({"m7c", {2, 2048, 12, 2, 64, 64, 32, 16, 64, 16, 512}});
  cases.push_back({"wide heads", {1, 700, 8, 2, 128, 128, 32, 16, 64, 6, 256}});
  cases.push_back(
      {"wide heads, widths of the paper", {1, 700, 8, 2, 192, 128, 32, 16, 64, 6, 256}});
  cases.push_back({"many small blocks", {1, 3000, 8, 1, 16, 32, 16, 8, 8, 4, 64}});
  return cases;
}

class AuditOnGpu : public GpuTestWith<Case> {};

void CompareAudit(const NsaShape& s, Branch branch, const std::vector<int32_t>& documents) {
  const std::vector<float> q = RoundToBf16(Random(s.q_size(), 1, 4)),
                           k = RoundToBf16(Random(s.k_size(), 2));
  const std::vector<float> scores = Random(s.blocks_size() / s.n_sel * s.sel_blocks(), 3);
  std::vector<int32_t> blocks(s.blocks_size());
  ConstTensor doc_start;
  if (!documents.empty()) doc_start = Span(documents);
  ASSERT_TRUE(
      ChooseBlocks(
          {}, {.shape = s, .scores = Span(scores), .doc_start = doc_start, .blocks = Span(blocks)})
          .ok());
  std::vector<float> kept = Poisoned(int64_t{1} * kAuditedQueries * s.n_heads);
  AuditArgs args{.shape = s,
                 .branch = branch,
                 .q = Span(q),
                 .k = Span(k),
                 .blocks = Span(std::as_const(blocks)),
                 .doc_start = doc_start,
                 .step = 700,
                 .queries = kAuditedQueries,
                 .kept = Span(kept)};
  ASSERT_TRUE(AuditAttention({}, args).ok());
  const DeviceTensor q_gpu = ToDevice(q), k_gpu = ToDevice(k), blocks_gpu = ToDevice(blocks),
                     documents_gpu = ToDevice(documents);
  args.q = q_gpu, args.k = k_gpu, args.blocks = blocks_gpu, args.doc_start = documents_gpu;
  ExpectOnGpu({{"kept", kept, DType::kF32, 1e-4, 1e-6}}, [&](const Tensors& t) {
    args.kept = t[0];
    return AuditAttention(Gpu::Get().exec(), args);
  });
}

TEST_P(AuditOnGpu, EqualsTheCpuTruthWithAndWithoutDocuments) {
  const NsaShape& s = GetParam().shape;
  for (const Branch branch : {kSel, kWin}) {
    SCOPED_TRACE(::testing::Message() << "branch " << branch);
    CompareAudit(s, branch, {});
    if (s.seq_len > 20) CompareAudit(s, branch, Documents(s, {5, 6, 19}));
  }
}

TEST_P(AuditOnGpu, CopiesTheSameListsAsTheCpu) {
  const NsaShape& s = GetParam().shape;
  const std::vector<float> scores = Random(s.blocks_size() / s.n_sel * s.sel_blocks(), 3);
  std::vector<int32_t> blocks(s.blocks_size());
  ASSERT_TRUE(ChooseBlocks({}, {.shape = s, .scores = Span(scores), .blocks = Span(blocks)}).ok());
  std::vector<int32_t> chosen(int64_t{1} * kAuditedQueries * ChoiceWidth(s));
  AuditChoicesArgs args{.shape = s,
                        .blocks = Span(std::as_const(blocks)),
                        .step = 700,
                        .queries = kAuditedQueries,
                        .chosen = Span(chosen)};
  ASSERT_TRUE(AuditChoices({}, args).ok());
  const DeviceTensor blocks_gpu = ToDevice(blocks);
  const DeviceTensor chosen_gpu(static_cast<int64_t>(chosen.size()), DType::kI32);
  args.blocks = blocks_gpu, args.chosen = chosen_gpu;
  ASSERT_TRUE(AuditChoices(Gpu::Get().exec(), args).ok());
  const std::vector<uint8_t> bytes = chosen_gpu.Bytes();
  ASSERT_EQ(bytes.size(), 4 * chosen.size());
  EXPECT_EQ(std::memcmp(bytes.data(), chosen.data(), bytes.size()), 0);
}

INSTANTIATE_TEST_SUITE_P(Shapes, AuditOnGpu, ::testing::ValuesIn(Shapes()), CaseName());

}  // namespace
}  // namespace nsa::testing
