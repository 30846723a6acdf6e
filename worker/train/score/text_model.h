// A model that reads and writes text, wherever its parameters are: those of a checkpoint
// (trained_model.h), or those of a job that trains (job_samples.h).
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/exec.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/data/tokenize/tokenizer.h"
#include "worker/train/decode/decoder.h"
#include "worker/train/model/parameters.h"

namespace nsa::train {

// The tokenizer that a job's model was trained with. FailedPrecondition when it is not known, e.g.
// because the job's token files came without data.tokenizer, when it does not fit the model, and
// when it cannot be loaded.
absl::StatusOr<std::unique_ptr<TextTokenizer>> TokenizerOf(const v1::JobSpec& spec);

struct TextModel {
  // All borrowed, also by the decoders.
  const v1::JobSpec* spec = nullptr;
  const TextTokenizer* tokenizer = nullptr;
  const Arena* parameters = nullptr;  // in the memory of exec's device

  Exec exec;  // what the decoders run with

  // Length of the sequences that the model is trained on.
  int32_t seq_len() const { return spec->train().seq_len(); }

  // A decoder for `slots` sequences of at most `context` tokens, which may be more than seq_len().
  // The errors of Decoder::Create().
  absl::StatusOr<std::unique_ptr<Decoder>> MakeDecoder(int32_t context, int32_t slots = 1) const;
};

}  // namespace nsa::train
