#include "kernels/nsa/layer/head_parts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/check.h"

namespace nsa {
namespace {

constexpr int64_t kWide = 8;  // bf16 values that a GPU copies at a time

absl::Status Check(const Exec& exec, int32_t parts, int64_t rows, std::span<const int64_t> widths,
                   const ConstTensor& whole, const ConstTensor& split) {
  NSA_RETURN_IF_ERROR(CheckAtLeast("parts", parts, 1));
  NSA_RETURN_IF_ERROR(CheckAtLeast("rows", rows, 1));
  if (widths.empty() || widths.size() > kMostHeadSegments) {
    return absl::InvalidArgumentError(absl::StrCat("widths: ", widths.size(),
                                                   " segments (from 1 to ", kMostHeadSegments,
                                                   "); correct the caller"));
  }
  const int64_t unit = parts * (exec.backend == Backend::kCuda ? kWide : 1);
  int64_t width = 0;
  for (const int64_t segment : widths) {
    if (segment < 1 || segment % unit != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "widths: ", segment, " columns (must be a multiple of ", unit, "); divide whole heads"));
    }
    width += segment;
  }
  NSA_RETURN_IF_ERROR(CheckBackend(exec, "head_parts", whole.dtype));
  NSA_RETURN_IF_ERROR(CheckTensor("whole", whole, rows * width, ActivationType(exec), "rows·Σw"));
  return CheckTensor("split", split, rows * width, ActivationType(exec), "rows·Σw");
}

// Calls copy(place in `whole`, place in `split`, count) for each run of columns of each row.
template <class CopyRun>
void ForEachRun(int32_t parts, int64_t rows, std::span<const int64_t> widths, CopyRun copy) {
  int64_t width = 0;
  for (const int64_t segment : widths) width += segment;
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < rows; ++r) {
    int64_t begin = 0;
    for (const int64_t segment : widths) {
      const int64_t run = segment / parts;
      for (int64_t p = 0; p < parts; ++p) {
        copy(r * width + begin + p * run, (p * rows + r) * (width / parts) + begin / parts, run);
      }
      begin += segment;
    }
  }
}

}  // namespace

absl::Status SplitHeads(const Exec& exec, const SplitHeadsArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, args.parts, args.rows, args.widths, args.whole, args.split));
  exec.Enter("split_heads");
  if (exec.backend == Backend::kCuda) return cuda::SplitHeads(exec, args);
  const float* const from = args.whole.as<float>().data();
  float* const to = args.split.as<float>().data();
  ForEachRun(args.parts, args.rows, args.widths, [=](int64_t whole, int64_t split, int64_t count) {
    std::copy_n(from + whole, count, to + split);
  });
  return absl::OkStatus();
}

absl::Status JoinHeads(const Exec& exec, const JoinHeadsArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, args.parts, args.rows, args.widths, args.whole, args.split));
  exec.Enter("join_heads");
  if (exec.backend == Backend::kCuda) return cuda::JoinHeads(exec, args);
  const float* const from = args.split.as<float>().data();
  float* const to = args.whole.as<float>().data();
  ForEachRun(args.parts, args.rows, args.widths, [=](int64_t whole, int64_t split, int64_t count) {
    std::copy_n(from + split, count, to + whole);
  });
  return absl::OkStatus();
}

}  // namespace nsa
