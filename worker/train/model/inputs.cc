#include "worker/train/model/inputs.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace nsa::train {

Inputs::Inputs(const InputShape& shape, ActivationArena* arena) : shape_(shape) {
  for (int32_t i = 0; i < shape_.micro_batches; ++i) {
    MicroBatch batch;
    for (ActivationArena::Slot* slot : {&batch.tokens, &batch.targets}) {
      *slot = arena->Plan(shape_.rows, DType::kI32);
    }
    batch.doc_start = arena->Plan(shape_.document_rows, DType::kI32);
    batches_.push_back(batch);
  }
}

absl::Status Inputs::Allocate() {
  if (shape_.backend == Backend::kCpu) return absl::OkStatus();
  const int64_t bytes = shape_.micro_batches * StagedRows() * SizeOf(DType::kI32);
  NSA_ASSIGN_OR_RETURN(staging_, cuda::PinnedMemory::Allocate(bytes, "tokens"));
  return absl::OkStatus();
}

absl::Status Inputs::Check(int32_t micro_batch, const TokenBatch& batch) const {
  if (micro_batch < 0 || micro_batch >= shape_.micro_batches) {
    return absl::InvalidArgumentError(absl::StrCat("model: micro-batch ", micro_batch,
                                                   " (from 0 to ", shape_.micro_batches - 1,
                                                   "); make a model for more"));
  }
  const auto check = [&](const char* name, size_t size, int64_t rows) {
    if (static_cast<int64_t>(size) == rows) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("model: ", name, ": ", size, " tokens (must be ",
                                                   rows, " = B·S); make a model of that shape"));
  };
  NSA_RETURN_IF_ERROR(check("tokens", batch.tokens.size(), shape_.rows));
  NSA_RETURN_IF_ERROR(check("targets", batch.targets.size(), shape_.rows));
  if (!batch.doc_start.empty()) {
    NSA_RETURN_IF_ERROR(check("doc_start", batch.doc_start.size(), shape_.document_rows));
  }
  if (shape_.backend == Backend::kCpu) return absl::OkStatus();
  const auto inside = [&](const char* name, std::span<const int32_t> tokens, int32_t least) {
    for (const int32_t token : tokens) {
      if (token >= least && token < shape_.vocab) continue;
      return absl::InvalidArgumentError(absl::StrCat("model: ", name, ": token ", token,
                                                     " (below the vocabulary of ", shape_.vocab,
                                                     "); take the data's tokenizer"));
    }
    return absl::OkStatus();
  };
  NSA_RETURN_IF_ERROR(inside("tokens", batch.tokens, 0));
  return inside("targets", batch.targets, std::numeric_limits<int32_t>::min());
}

// Copies `values` to the device; to a GPU through the pinned memory from value `staged` on, so that
// the host need not wait.
absl::Status Inputs::Copy(const Exec& exec, std::span<const int32_t> values, int64_t staged,
                          const Tensor& to) {
  if (shape_.backend == Backend::kCpu) {
    std::copy(values.begin(), values.end(), to.as<int32_t>().begin());
    return absl::OkStatus();
  }
  int32_t* const host = static_cast<int32_t*>(staging_.data()) + staged;
  std::copy(values.begin(), values.end(), host);
  return cuda::CopyBytes(exec.stream, to.data, host, static_cast<int64_t>(values.size_bytes()));
}

absl::Status Inputs::Load(const Exec& exec, const ActivationArena& arena, int32_t micro_batch,
                          const TokenBatch& batch) {
  NSA_RETURN_IF_ERROR(Check(micro_batch, batch));
  MicroBatch& slots = batches_[micro_batch];
  const int64_t staged = micro_batch * StagedRows();
  NSA_RETURN_IF_ERROR(Copy(exec, batch.tokens, staged, arena[slots.tokens]));
  NSA_RETURN_IF_ERROR(Copy(exec, batch.targets, staged + shape_.rows, arena[slots.targets]));
  slots.documents = !batch.doc_start.empty();
  if (!slots.documents) return absl::OkStatus();
  return Copy(exec, batch.doc_start, staged + 2 * shape_.rows, arena[slots.doc_start]);
}

absl::Status Inputs::LoadTokens(const Exec& exec, const ActivationArena& arena, int32_t micro_batch,
                                std::span<const int32_t> tokens) {
  MicroBatch& slots = batches_[micro_batch];
  slots.documents = false;
  return Copy(exec, tokens, micro_batch * StagedRows(), arena[slots.tokens]);
}

std::vector<bool> Inputs::documents() const {
  std::vector<bool> documents;
  for (const MicroBatch& batch : batches_) documents.push_back(batch.documents);
  return documents;
}

}  // namespace nsa::train
