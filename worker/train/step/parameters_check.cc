#include "worker/train/step/parameters_check.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "kernels/cuda/device.h"
#include "worker/train/comm/stop.h"

namespace nsa::train {
namespace {

constexpr int64_t kDefaultHashEvery = 100;
constexpr uint64_t kLowHalf = 0xffffffffu;
constexpr size_t kMostRanksShown = 8;

std::string RanksText(const std::vector<size_t>& ranks) {
  const size_t shown = std::min(ranks.size(), kMostRanksShown);
  return absl::StrCat(
      ranks.size() == 1 ? "rank " : "ranks ",
      absl::StrJoin(ranks.begin(), ranks.begin() + static_cast<int64_t>(shown), ", "),
      shown < ranks.size() ? absl::StrCat(", … (", ranks.size(), " ranks)") : "");
}

}  // namespace

bool HashesAfter(const v1::GuardSpec& guard, int64_t step) {
  const int64_t every = guard.has_hash_every() ? guard.hash_every() : kDefaultHashEvery;
  return every > 0 && step % every == 0;
}

absl::StatusOr<std::vector<uint64_t>> ExchangeHashes(Comm* comm, uint64_t mine) {
  // Numbers travel as doubles, which hold each half exactly.
  const std::array<double, 2> halves = {static_cast<double>(mine >> 32),
                                        static_cast<double>(mine & kLowHalf)};
  NSA_ASSIGN_OR_RETURN(const std::vector<double> all, Gather(comm, "parameters_hash", halves));
  std::vector<uint64_t> hashes(all.size() / 2);
  for (size_t rank = 0; rank < hashes.size(); ++rank) {
    hashes[rank] =
        static_cast<uint64_t>(all[2 * rank]) << 32 | static_cast<uint64_t>(all[2 * rank + 1]);
  }
  return hashes;
}

std::optional<std::string> DifferenceText(std::span<const uint64_t> hashes, int64_t step,
                                          const std::string& job) {
  std::map<uint64_t, std::vector<size_t>> ranks_with;
  for (size_t rank = 0; rank < hashes.size(); ++rank) ranks_with[hashes[rank]].push_back(rank);
  if (ranks_with.size() <= 1) return std::nullopt;
  std::vector<std::pair<uint64_t, std::vector<size_t>>> groups(ranks_with.begin(),
                                                               ranks_with.end());
  std::ranges::sort(groups, [](const auto& a, const auto& b) {
    if (a.second.size() != b.second.size()) return a.second.size() > b.second.size();
    return a.second.front() < b.second.front();
  });
  std::vector<std::string> texts;
  for (const auto& [hash, ranks] : groups) {
    if (texts.size() == kMostRanksShown) {
      texts.emplace_back("…");
      break;
    }
    texts.push_back(absl::StrFormat("%s: %016x", RanksText(ranks), hash));
  }
  return absl::StrFormat(
      "step %d: the hash of the parameters: %s (equal where nothing is wrong); `nsactl replay %s "
      "--step "
      "%d` repeats the steps from the checkpoint before and says which rank differs; run it before "
      "train.keep_checkpoints removes that checkpoint",
      step, absl::StrJoin(texts, "; "), job, step);
}

bool FlipsBitAfter(int64_t step, int32_t rank, int64_t generation) {
  const char* const text = std::getenv("NSA_TEST_FLIP_BIT_AT_STEP");
  if (text == nullptr || generation != 1) return false;
  const std::pair<std::string, std::string> words = absl::StrSplit(text, absl::MaxSplits(',', 1));
  int64_t at_step = 0;
  int32_t at_rank = 0;
  return absl::SimpleAtoi(words.first, &at_step) && absl::SimpleAtoi(words.second, &at_rank) &&
         at_step == step && at_rank == rank;
}

absl::Status FlipBit(const Exec& exec, ModelState* state) {
  constexpr uint32_t kBit = uint32_t{1} << 22;  // the highest of the fraction
  const bool half = exec.backend == Backend::kCuda && state->sharded;
  const ParameterInfo& last = state->parameters.layout().tensors().back();
  const Slice place = (half ? state->parameters.half_slice() : state->parameters.slice())
                          .Common({last.offset, last.offset + last.size});
  if (place.empty()) return absl::OkStatus();
  if (exec.backend == Backend::kCpu) {
    float* const value = state->parameters.of(place).data();
    *value = std::bit_cast<float>(std::bit_cast<uint32_t>(*value) ^ kBit);
    return absl::OkStatus();
  }
  // With divided state the weight that the model computes with is the one in bf16, the upper half
  // of an fp32.
  void* const at = half ? state->parameters.half(place).data : state->parameters.of(place).data();
  const int64_t bytes = half ? 2 : 4;
  uint32_t bits = 0;  // little-endian
  NSA_RETURN_IF_ERROR(cuda::CopyBytes(exec.stream, &bits, at, bytes));
  NSA_RETURN_IF_ERROR(cuda::Synchronize(exec.stream));
  bits ^= half ? kBit >> 16 : kBit;
  NSA_RETURN_IF_ERROR(cuda::CopyBytes(exec.stream, at, &bits, bytes));
  return cuda::Synchronize(exec.stream);
}

}  // namespace nsa::train
