#include "worker/train/decode/linear_rows.h"

#include <cblas.h>

#include <algorithm>

#include "common/base/status.h"
#include "kernels/nn/activation.h"
#include "kernels/nsa/decode/row_linear.h"
#include "worker/train/decode/sequence_memory.h"

namespace nsa::train {
namespace {

// y = x Wᵀ + add for one row on the CPU.
void MatrixTimesVector(const LinearRowsArgs& args, const ConstTensor& x) {
  const auto in = static_cast<blasint>(args.shape.in), out = static_cast<blasint>(args.shape.out);
  float* const y = args.y.as<float>().data();
  const bool add = args.add.wanted();
  if (add) std::copy_n(args.add.as<float>().data(), args.shape.out, y);
  cblas_sgemv(CblasRowMajor, CblasNoTrans, out, in, 1.0f, args.w.as<float>().data(), in,
              x.as<float>().data(), 1, add ? 1.0f : 0.0f, y, 1);
}

absl::Status Product(const Exec& exec, const LinearRowsArgs& args, const ConstTensor& x) {
  LinearShape shape = args.shape;
  if (exec.backend == Backend::kCpu && shape.rows == 1) {
    exec.Enter("matmul");
    MatrixTimesVector(args, x);
    return absl::OkStatus();
  }
  // On a GPU one number of rows, because the matrix library times its algorithms for every new
  // shape. What is computed in the rows after the last is not used.
  if (exec.backend == Backend::kCuda) shape.rows = kDecodeRows;
  const int64_t size = shape.rows * shape.out;
  return Linear(exec, shape, Prefix(x, shape.rows * shape.in), args.w, Prefix(args.y, size),
                Prefix(args.add, size));
}

absl::Status OneRowOnGpu(const Exec& exec, const LinearRowsArgs& args) {
  exec.Enter("row_linear");
  return cuda::RowLinear(exec, {.in = args.shape.in,
                                .out = args.shape.out,
                                .x = Prefix(args.x, args.shape.in),
                                .norm = args.norm,
                                .w = args.w,
                                .add = Prefix(args.add, args.shape.out),
                                .y = Prefix(args.y, args.shape.out),
                                .activation = args.activation,
                                .eps = args.eps});
}

}  // namespace

absl::Status LinearRows(const Exec& exec, const LinearRowsArgs& args) {
  const LinearShape& shape = args.shape;
  if (exec.backend == Backend::kCuda && shape.rows == 1) return OneRowOnGpu(exec, args);
  ConstTensor x = args.x;
  if (args.norm.wanted()) {
    const int64_t size = shape.rows * shape.in;
    NSA_RETURN_IF_ERROR(RmsNorm(exec, {.rows = shape.rows,
                                       .dim = shape.in,
                                       .x = Prefix(x, size),
                                       .weight = args.norm,
                                       .y = Prefix(args.normalized, size),
                                       .eps = args.eps}));
    x = args.normalized;
  }
  NSA_RETURN_IF_ERROR(Product(exec, args, x));
  if (!args.activation.has_value()) return absl::OkStatus();
  const Tensor y = Prefix(args.y, shape.rows * shape.out);
  return Activate(exec, {.x = y, .y = y, .kind = *args.activation});
}

}  // namespace nsa::train
