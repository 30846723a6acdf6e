// A model loaded from a checkpoint, to be used and not trained.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/exec.h"
#include "nsa/v1/checkpoint.pb.h"
#include "worker/train/data/tokenize/tokenizer.h"
#include "worker/train/decode/decoder.h"
#include "worker/train/gpu/gpu.h"
#include "worker/train/model/model.h"
#include "worker/train/model/parameters.h"
#include "worker/train/score/text_model.h"

namespace nsa::train {

class TrainedModel {
 public:
  // `checkpoint` is a checkpoint folder, a link to one (latest.ckpt), or an out_dir, whose newest
  // valid checkpoint is loaded. Every file is verified. NotFound when there is no checkpoint,
  // DataLoss when it is damaged, FailedPrecondition when its sizes are
  // out of range or its weights are not finite, and when the tokenizer that the model was trained
  // with is not known, e.g. because its token files came without data.tokenizer, or when it cannot
  // be loaded.
  // With kCuda the parameters are then moved to the GPU. The errors of Gpu::Open(), before anything
  // is read; ResourceExhausted when the GPU has too little memory.
  static absl::StatusOr<std::unique_ptr<TrainedModel>> Load(const std::filesystem::path& checkpoint,
                                                            Backend backend = Backend::kCpu);

  const v1::CheckpointState& state() const { return state_; }
  const v1::JobSpec& spec() const { return state_.spec(); }
  const TextTokenizer& tokenizer() const { return *tokenizer_; }
  int32_t vocab() const { return vocab_; }

  // Length of the sequences that the model was trained on.
  int32_t seq_len() const { return spec().train().seq_len(); }

  // The device of the parameters: what models and decoders run with. It has no scratch memory: who
  // needs Exec::workspace brings it.
  Exec exec() const;
  // "CPU", or the GPU's name.
  std::string device() const;

  // Makes a model for `batch` sequences of `seq_len` tokens, which keeps the losses of its
  // tokens. It borrows this object's parameters.
  absl::StatusOr<std::unique_ptr<Model>> MakeModel(int32_t batch, int32_t seq_len) const;

  // The same model for Sample(). It borrows from this object, as its decoders do.
  TextModel text_model() const;

  // text_model().MakeDecoder().
  absl::StatusOr<std::unique_ptr<Decoder>> MakeDecoder(int32_t context, int32_t slots = 1) const;

 private:
  TrainedModel() = default;
  absl::Status MoveToGpu();

  std::unique_ptr<Gpu> gpu_;  // null on the CPU
  v1::CheckpointState state_;
  std::unique_ptr<TextTokenizer> tokenizer_;
  std::unique_ptr<ParameterLayout> layout_;
  std::unique_ptr<Arena> parameters_;
  int32_t vocab_ = 0;
};

}  // namespace nsa::train
