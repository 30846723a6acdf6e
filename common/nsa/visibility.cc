#include "common/nsa/visibility.h"

namespace nsa {
namespace {

template <Branch kBranch>
int64_t SumOverTokens(const NsaShape& shape, std::span<const int32_t> doc_start) {
  int64_t sum = 0;
  const int64_t rows = doc_start.empty() ? shape.seq_len : static_cast<int64_t>(doc_start.size());
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t t = static_cast<int32_t>(row % shape.seq_len);
    sum += BranchRule<kBranch>::KeysRead(shape, t, doc_start.empty() ? 0 : doc_start[row]);
  }
  return sum * shape.n_kv_groups * (doc_start.empty() ? shape.batch : 1);
}

}  // namespace

int64_t KeysRead(const NsaShape& shape, Branch branch, std::span<const int32_t> doc_start) {
  return WithBranch(branch, [&](auto rule) { return SumOverTokens<rule>(shape, doc_start); });
}

std::array<double, kBranches> MeanKeysRead(const NsaShape& shape) {
  NsaShape sequence = shape;
  sequence.batch = 1;
  sequence.n_kv_groups = 1;
  std::array<double, kBranches> mean = {};
  for (int branch = 0; branch < kBranches; ++branch) {
    mean[branch] = static_cast<double>(KeysRead(sequence, static_cast<Branch>(branch))) /
                   static_cast<double>(shape.seq_len);
  }
  return mean;
}

}  // namespace nsa
