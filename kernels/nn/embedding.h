// Token embedding: y[r] = table[tokens[r]].
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa {

struct EmbeddingArgs {
  int64_t rows = 0;
  int64_t vocab = 0;
  int64_t dim = 0;
  ConstTensor tokens;  // i32 [rows], each in [0, vocab)
  ConstTensor table;   // fp32 [vocab, dim]
  Tensor y;            // fp32 [rows, dim], overwritten
};

// InvalidArgument when a tensor's size or type differs from its comment or a token is outside the
// vocabulary. Tokens are checked on the CPU only; on CUDA the data loader has checked them.
absl::Status Embedding(const Exec& exec, const EmbeddingArgs& args);

// dtable[v] += Σ dy[r] over the rows r with tokens[r] = v, in the order of the rows.
struct EmbeddingBackwardArgs {
  int64_t rows = 0;
  int64_t vocab = 0;
  int64_t dim = 0;
  ConstTensor tokens;  // i32 [rows]
  ConstTensor dy;      // fp32 [rows, dim]
  Tensor dtable;       // fp32 [vocab, dim], added to
};

absl::Status EmbeddingBackward(const Exec& exec, const EmbeddingBackwardArgs& args);

}  // namespace nsa

// The same on a GPU (embedding.cu); the functions above have checked the arguments.
namespace nsa::cuda {

absl::Status Embedding(const Exec& exec, const EmbeddingArgs& args);
absl::Status EmbeddingBackward(const Exec& exec, const EmbeddingBackwardArgs& args);
// Bytes of Exec::workspace that EmbeddingBackward needs.
int64_t EmbeddingBackwardWorkspaceBytes(int64_t rows, int64_t vocab, int64_t dim);

// EmbeddingBackward() by sorted tokens (embedding_sorted.cu), which embedding.cu calls where the
// vocabulary is large: rows of one token then follow each other, in their own order. The sum of a
// token has a fixed order, so bits repeat.
absl::Status SortedEmbeddingBackward(const Exec& exec, const EmbeddingBackwardArgs& args);

// Bytes of Exec::workspace that it needs.
int64_t SortedEmbeddingBackwardBytes(int64_t rows, int64_t vocab, int64_t dim);

}  // namespace nsa::cuda
