// The decoder: embed → n blocks → RMSNorm → head → cross-entropy, forward and backward by hand as a
// sequence of kernel calls.
//
//   x ← x + Attention(RMSNorm1(x));   x ← x + fc2(silu(fc1(RMSNorm2(x))))
//
// A Model is the workspace for one shape [B, S]: it owns the activations (one arena, sized when it
// is made) and borrows the parameters, which stay the caller's. Several models of different shapes
// can share parameters, e.g. one for training and one for scoring. One thread at a time.
//
// Forward() waits for its result. A step on a GPU is made of the pieces below it, which only
// enqueue: Load() every micro-batch, EnqueueForward() and Backward() each, EnqueueReadout(), wait
// for the stream once, Collect(). What EnqueueForward() … EnqueueReadout() enqueue reads and writes
// the same memory every time, so that a CUDA graph can hold it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/nsa_shape.h"
#include "kernels/exec.h"
#include "nsa/v1/job.pb.h"
#include "nsa/v1/telemetry.pb.h"
#include "worker/train/parameters.h"

namespace nsa {

// What a model is made for.
struct ModelOptions {
  int32_t batch = 1;        // B, sequences at a time
  int32_t seq_len = 0;      // S
  bool training = false;    // false: no backward, and the memory of one block
  bool statistics = false;  // gather LayerStats in Forward
  Backend backend = Backend::kCpu;
  int32_t micro_batches = 1;  // that can be loaded at a time
};

// A run of elements in a flat arena; size 0 where the model has no such tensor.
struct Place {
  int64_t offset = 0;
  int64_t size = 0;
};

// One micro-batch. Row b holds S inputs and, for each, the token that follows it.
struct TokenBatch {
  std::span<const int32_t> tokens;   // [B, S]
  std::span<const int32_t> targets;  // [B, S]; negative predicts nothing

  // [B, S]: the first position that each token may attend, that of its document; empty without a
  // document mask.
  std::span<const int32_t> doc_start = {};
};

class Model {
 public:
  // `parameters` has the layout of `spec` and outlives the model. InvalidArgument when the shape is
  // outside the limits of common/nsa_shape.h.
  static absl::StatusOr<std::unique_ptr<Model>> Create(const v1::JobSpec& spec,
                                                       const ModelOptions& options,
                                                       const Arena* parameters);
  ~Model();

  // Called as a block is entered, with its number, or −1 behind the last one; may be empty.
  void set_on_layer(std::function<void(int32_t layer)> on_layer);

  // Mean loss over the predicted tokens, in nats. With `training`, keeps what Backward needs.
  absl::StatusOr<double> Forward(const Exec& exec, const TokenBatch& batch);

  // Called in Backward when the gradients of a part are complete: n_layers (final norm and head),
  // then the blocks downwards, then −1 (embedding). PlaceOf() says where they are.
  using AfterPart = std::function<absl::Status(int32_t part)>;

  // Adds gradient_scale · d(Σ of the last Forward's token losses)/d(parameter) to `gradients`. Once
  // a Forward. For the gradient of a mean over n tokens the scale is 1/n.
  absl::Status Backward(const Exec& exec, float gradient_scale, Arena* gradients,
                        const AfterPart& after_part = {});

  // Where the parameters of a part lie in the arena; parts as in AfterPart.
  Place PlaceOf(int32_t part) const;

  // Brings a micro-batch to the device. InvalidArgument when a size is wrong or a token is outside
  // the vocabulary. Not while the device still works on the batch loaded there before.
  absl::Status Load(const Exec& exec, int32_t micro_batch, const TokenBatch& batch);

  // Forward of a loaded micro-batch; the loss stays on the device.
  absl::Status EnqueueForward(const Exec& exec, int32_t micro_batch);

  // Brings losses and statistics of all micro-batches to the host.
  absl::Status EnqueueReadout(const Exec& exec);

  // Once that has arrived: counts the micro-batch's statistics and returns its loss.
  double Collect(int32_t micro_batch);

  // Which of the loaded micro-batches came with documents: what is enqueued depends on it.
  std::vector<bool> loaded_documents() const;

  // Where the losses are on the device: one every `stride` floats, a micro-batch each.
  struct Losses {
    const float* first = nullptr;
    int64_t stride = 0;
  };
  Losses losses() const;

  // Scratch memory that the kernels take from Exec::workspace; 0 on the CPU.
  int64_t scratch_bytes() const;

  // −log p(target) of every position of the last Forward, [B, S]; 0 where nothing was predicted. On
  // a GPU, device memory.
  std::span<const float> token_losses() const;

  // Logits after position `position` of row 0, [V]: what the next token is drawn from. Later
  // positions may hold anything in the vocabulary; they are not seen. CPU only.
  absl::Status NextLogits(const Exec& exec, std::span<const int32_t> tokens, int32_t position,
                          std::span<float> logits);

  // Statistics over all Forwards since the last call, a layer each; empty without `statistics`.
  // Recomputed blocks are not counted twice.
  std::vector<v1::LayerStats> TakeLayerStats();

  // Bytes of the activations.
  int64_t activation_bytes() const;

 private:
  class Impl;
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nsa
