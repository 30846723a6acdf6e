// The end of the decoder, forward and backward by hand:
//
//   h = RMSNorm(x);   logits = h Wᵀ;   loss = cross-entropy(logits, targets)
//
// Logits are in memory for `rows_at_once` of the R = B·S rows. With fewer than R, each pass over
// the rows makes them again, piece by piece, and overwrites a piece with its gradient. One thread
// at a time.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/nn/cross_entropy.h"
#include "kernels/tensor.h"
#include "worker/train/model/activations.h"
#include "worker/train/model/block/block.h"
#include "worker/train/model/model_config.h"
#include "worker/train/model/parameters.h"

namespace nsa::train {

class OutputHead {
 public:
  // `config`, `places` and `parameters` outlive the head.
  OutputHead(const ModelConfig* config, const ModelPlaces* places, const Arena* parameters)
      : config_(*config), places_(*places), parameters_(*parameters) {}

  // Plans memory in `arena`, which outlives the head.
  void Plan(int64_t rows_at_once, ActivationArena* arena);

  // Which rows predict what, and where the results go.
  struct Loss {
    ConstTensor targets;  // int32 [R]; negative predicts nothing
    Tensor row_loss;      // fp32 [R]
    Tensor mean_loss;     // fp32 [1]
  };

  // h of x [R, D], kept until the next call.
  absl::Status Norm(const Exec& exec, const ConstTensor& x);

  // Losses of the rows of the last Norm().
  absl::Status Forward(const Exec& exec, const Loss& loss);

  struct BackwardArgs {
    ConstTensor x;  // of the last Norm()
    Loss loss;
    bool has_loss = false;  // Forward() has been called since Norm(): results stay as they are
    float gradient_scale = 1;
    Tensor dh;                   // workspace [R, D]
    Tensor dx;                   // [R, D], overwritten
    Arena* gradients = nullptr;  // of the norm's weight: added to
    bool overwrite = false;      // the gradient of W is overwritten, else added to
  };
  absl::Status Backward(const Exec& exec, const BackwardArgs& args);

  // h of the last Norm(), [R, D].
  Tensor h() const { return (*arena_)[h_]; }

 private:
  // The weights, with rows for all columns of the logits.
  Place Weights() const;
  ConstTensor Weight(const Place& place) const {
    return parameters_.weight(place.offset, place.size);
  }
  absl::Status Logits(const Exec& exec, int64_t first, int64_t rows);
  CrossEntropyArgs CrossEntropyOf(const Loss& loss, int64_t first, int64_t rows) const;
  absl::Status Mean(const Exec& exec, const Loss& loss) const;
  absl::Status BackwardOfRows(const Exec& exec, const BackwardArgs& args, int64_t first,
                              int64_t rows);

  const ModelConfig& config_;
  const ModelPlaces& places_;
  const Arena& parameters_;
  const ActivationArena* arena_ = nullptr;
  int64_t rows_at_once_ = 0;
  ActivationArena::Slot rstd_, h_, logits_;
};

}  // namespace nsa::train
