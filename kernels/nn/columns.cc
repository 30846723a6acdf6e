#include "kernels/nn/columns.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/check.h"

namespace nsa {
namespace {

absl::Status CheckCpu(const Exec& exec, const char* what) {
  if (exec.backend == Backend::kCpu) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      what, ": backend cuda (must be cpu); nsa::SplitProjections and JoinProjections do it there"));
}

// Checks every part and returns the sum of their widths.
template <class Part>
absl::StatusOr<int64_t> TotalWidth(int64_t rows, std::span<const Part> parts) {
  NSA_RETURN_IF_ERROR(CheckAtLeast("rows", rows, 1));
  int64_t width = 0;
  for (const Part& part : parts) {
    const int64_t part_width = part.size / rows;
    NSA_RETURN_IF_ERROR(CheckTensor("part", part, part_width * rows, DType::kF32, "rows·width"));
    width += part_width;
  }
  return width;
}

}  // namespace

absl::Status SplitColumns(const Exec& exec, const SplitColumnsArgs& args) {
  NSA_RETURN_IF_ERROR(CheckCpu(exec, "split_columns"));
  NSA_ASSIGN_OR_RETURN(const int64_t width, TotalWidth(args.rows, args.parts));
  NSA_RETURN_IF_ERROR(
      CheckTensor("wide", args.wide, args.rows * width, DType::kF32, "rows·Σ width"));
  exec.Enter("split_columns");
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < args.rows; ++r) {
    const float* from = args.wide.as<float>().data() + r * width;
    for (const Tensor& part : args.parts) {
      const int64_t part_width = part.size / args.rows;
      std::copy_n(from, part_width, part.as<float>().data() + r * part_width);
      from += part_width;
    }
  }
  return absl::OkStatus();
}

absl::Status JoinColumns(const Exec& exec, const JoinColumnsArgs& args) {
  NSA_RETURN_IF_ERROR(CheckCpu(exec, "join_columns"));
  NSA_ASSIGN_OR_RETURN(const int64_t width, TotalWidth(args.rows, args.parts));
  NSA_RETURN_IF_ERROR(
      CheckTensor("wide", args.wide, args.rows * width, DType::kF32, "rows·Σ width"));
  exec.Enter("join_columns");
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < args.rows; ++r) {
    float* to = args.wide.as<float>().data() + r * width;
    for (const ConstTensor& part : args.parts) {
      const int64_t part_width = part.size / args.rows;
      std::copy_n(part.as<float>().data() + r * part_width, part_width, to);
      to += part_width;
    }
  }
  return absl::OkStatus();
}

}  // namespace nsa
