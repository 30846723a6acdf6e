#include "kernels/nn/embedding.h"

#include <algorithm>

#include "common/base/status.h"
#include "kernels/check.h"

namespace nsa {
namespace {

// Columns per task for the gradient of the table: one cache line, so that threads never share one.
constexpr int64_t kColumns = 16;

absl::Status Check(const Exec& exec, const char* kernel, int64_t rows, int64_t vocab, int64_t dim,
                   const ConstTensor& tokens, const ConstTensor& table, DType table_type,
                   const ConstTensor& y) {
  NSA_RETURN_IF_ERROR(CheckAtLeast("rows", rows, 0));
  NSA_RETURN_IF_ERROR(CheckAtLeast("vocab", vocab, 1));
  NSA_RETURN_IF_ERROR(CheckAtLeast("dim", dim, 1));
  NSA_RETURN_IF_ERROR(CheckTensor("tokens", tokens, rows, DType::kI32, "rows"));
  NSA_RETURN_IF_ERROR(CheckTensor("table", table, vocab * dim, table_type, "vocab·dim"));
  NSA_RETURN_IF_ERROR(CheckTensor("y or dy", y, rows * dim, ActivationType(exec), "rows·dim"));
  if (exec.backend == Backend::kCuda) return absl::OkStatus();  // the loader has checked
  for (const int32_t token : tokens.as<int32_t>()) {
    if (token >= 0 && token < vocab) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(kernel, ": token: ", token, " (from 0 to ", vocab - 1,
                     "); check that the data was made with the job's tokenizer"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Embedding(const Exec& exec, const EmbeddingArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, "embedding", args.rows, args.vocab, args.dim, args.tokens,
                            args.table, ActivationType(exec), args.y));
  exec.Enter("embedding");
  if (exec.backend == Backend::kCuda) return cuda::Embedding(exec, args);
  const auto tokens = args.tokens.as<int32_t>();
  const float* table = args.table.as<float>().data();
  float* y = args.y.as<float>().data();
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < args.rows; ++r) {
    std::copy_n(table + tokens[r] * args.dim, args.dim, y + r * args.dim);
  }
  return absl::OkStatus();
}

absl::Status EmbeddingBackward(const Exec& exec, const EmbeddingBackwardArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, "embedding_backward", args.rows, args.vocab, args.dim,
                            args.tokens, args.dtable, DType::kF32, args.dy));
  exec.Enter("embedding_backward");
  if (exec.backend == Backend::kCuda) return cuda::EmbeddingBackward(exec, args);
  const auto tokens = args.tokens.as<int32_t>();
  const float* dy = args.dy.as<float>().data();
  float* dtable = args.dtable.as<float>().data();
  // Threads divide the columns, not the tokens: the work is balanced for any tokens, and sums run
  // in row order.
#pragma omp parallel for schedule(static)
  for (int64_t begin = 0; begin < args.dim; begin += kColumns) {
    const int64_t end = std::min(begin + kColumns, args.dim);
    for (int64_t r = 0; r < args.rows; ++r) {
      const float* from = dy + r * args.dim;
      float* to = dtable + tokens[r] * args.dim;
      for (int64_t i = begin; i < end; ++i) to[i] += from[i];
    }
  }
  return absl::OkStatus();
}

}  // namespace nsa
