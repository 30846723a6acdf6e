#include "kernels/nn/columns.h"

#include <algorithm>

#include "common/status.h"
#include "kernels/check.h"
#include "kernels/cuda/kernels.h"

namespace nsa {
namespace {

// Checks every part and returns the sum of their widths.
template <class Part>
absl::StatusOr<int64_t> TotalWidth(int64_t rows, std::span<const Part> parts, DType type) {
  NSA_RETURN_IF_ERROR(CheckAtLeast("rows", rows, 1));
  int64_t width = 0;
  for (const Part& part : parts) {
    const int64_t part_width = part.size / rows;
    NSA_RETURN_IF_ERROR(CheckTensor("part", part, part_width * rows, type, "rows·width"));
    width += part_width;
  }
  return width;
}

}  // namespace

absl::Status SplitColumns(const Exec& exec, const SplitColumnsArgs& args) {
  const DType type = ActivationType(exec);
  NSA_ASSIGN_OR_RETURN(const int64_t width, TotalWidth(args.rows, args.parts, type));
  NSA_RETURN_IF_ERROR(CheckTensor("wide", args.wide, args.rows * width, type, "rows·Σ width"));
  exec.Enter("split_columns");
  if (exec.backend == Backend::kCuda) return cuda::SplitColumns(exec, args);
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
  const DType type = ActivationType(exec);
  NSA_ASSIGN_OR_RETURN(const int64_t width, TotalWidth(args.rows, args.parts, type));
  NSA_RETURN_IF_ERROR(CheckTensor("wide", args.wide, args.rows * width, type, "rows·Σ width"));
  exec.Enter("join_columns");
  if (exec.backend == Backend::kCuda) return cuda::JoinColumns(exec, args);
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
