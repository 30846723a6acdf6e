// The decoder: embed → n blocks → RMSNorm → head → cross-entropy, forward and backward by hand as a
// sequence of kernel calls.
//
//   x ← x + NSA(RMSNorm1(x));   x ← x + fc2(act(fc1(RMSNorm2(x))))
//
// A Model is the workspace for one shape [B, S]. It owns the activations (one arena, allocated
// once) and borrows the parameters from the caller. Several models of different shapes can share
// parameters, e.g. one for training and one for scoring. One thread at a time.
//
// Forward() waits for its result. A step on a GPU uses the functions below it, which only enqueue:
// Load() every micro-batch, EnqueueForward() and Backward() for each, EnqueueReadout(), wait for
// the stream once, Collect(). What EnqueueForward() … EnqueueReadout() enqueue reads and writes the
// same memory every time, so a CUDA graph can hold it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/estimate/memory/memory.h"
#include "common/nsa/nsa_shape.h"
#include "kernels/exec.h"
#include "nsa/v1/job.pb.h"
#include "nsa/v1/telemetry.pb.h"
#include "worker/train/model/context/context_group.h"
#include "worker/train/model/parameters.h"

namespace nsa::train {

// What a model is made for.
struct ModelOptions {
  int32_t batch = 1;        // B, sequences at a time
  int32_t seq_len = 0;      // S
  bool training = false;    // false: no backward, and memory for one block only
  bool statistics = false;  // gather LayerStats in Forward
  Backend backend = Backend::kCpu;
  int32_t micro_batches = 1;  // how many can be loaded at a time
  // The ranks that share sequences with this one; null, or a group of one rank: none. It outlives
  // the model, whose Forward(), EnqueueForward(), Backward() and AuditAttention() exchange heads in
  // it: all ranks call them in the same order. Each has seq_len / N tokens of every sequence, and
  // so token losses and losses; its statistics are those of its heads over all tokens.
  ContextGroup* group = nullptr;
  // Keep every micro-batch's token losses until the next step, for token_losses(micro_batch).
  bool keep_token_losses = false;

  // In place of what RecomputeOf(job) says, which knows no GPU's memory.
  std::optional<Recompute> recompute = {};
};

// A run of elements in a flat arena; size 0 where the model has no such tensor.
struct Place {
  int64_t offset = 0;
  int64_t size = 0;
};

// One micro-batch. Row b holds S inputs and, for each, the token that follows it; with a context
// group of N ranks the S/N of this rank.
struct TokenBatch {
  std::span<const int32_t> tokens;   // [B, S/N]
  std::span<const int32_t> targets;  // [B, S/N]; negative predicts nothing

  // [B, S]: the first position that each token may attend to, where its document begins; empty
  // without a document mask.
  std::span<const int32_t> doc_start = {};
};

class Model {
 public:
  // `parameters` has the layout of `spec` and outlives the model. InvalidArgument when the shape is
  // outside the limits of common/nsa/nsa_shape.h.
  static absl::StatusOr<std::unique_ptr<Model>> Create(const v1::JobSpec& spec,
                                                       const ModelOptions& options,
                                                       const Arena* parameters);
  ~Model();

  // Called with its number when a block is entered, and with −1 after the last one; may be empty.
  void set_on_layer(std::function<void(int32_t layer)> on_layer);

  // What a part of the model is read for.
  enum class Pass : uint8_t { kForward, kBackward, kAudit };

  // Called before the weights of a part are read: −1 is the embedding, then the blocks, and behind
  // the last one the final norm with the head. Forward reads all parts in this order, Backward from
  // the last one to block 0, and an audit each block that it computes again. The call may move the
  // parameters (Arena::MoveTo()) to that part; until the next call no other part is read.
  // Its error ends the pass. May be empty.
  using BeforePart = std::function<absl::Status(int32_t part, Pass pass)>;
  void set_before_part(BeforePart before_part);

  // Mean loss over the predicted tokens, in nats. With `training`, keeps what Backward needs.
  absl::StatusOr<double> Forward(const Exec& exec, const TokenBatch& batch);

  // Called in Backward when all gradients from element `begin` on are complete, for each of
  // PartBegins().
  using AfterPart = std::function<absl::Status(int64_t begin)>;

  // Adds gradient_scale · d(Σ of the last Forward's token losses)/d(parameter) to `gradients`. Once
  // per Forward. For the gradient of a mean over n tokens the scale is 1/n. With `overwrite` it
  // takes `gradients` and what is behind them (Arena::extras()) for zeros, whatever they are; that
  // is faster than adding to zeros. `gradients` has at least those of the part that backward is at:
  // `after_part` may move it (Arena::MoveTo()) to the part that follows.
  absl::Status Backward(const Exec& exec, float gradient_scale, Arena* gradients,
                        const AfterPart& after_part = {}, bool overwrite = false);

  // Where the parts of the arena begin whose gradients Backward completes one after another, from
  // the end to 0: final norm and head; of each block downwards the MLP with its norm, and the rest;
  // the embedding.
  std::vector<int64_t> PartBegins() const;

  // Copies a micro-batch to the device. InvalidArgument when a size is wrong or a token is outside
  // the vocabulary. Not while the device still uses the one loaded there before.
  absl::Status Load(const Exec& exec, int32_t micro_batch, const TokenBatch& batch);

  // Forward of a loaded micro-batch; the loss stays on the device. With `loss_in_backward` losses
  // are left to the Backward() that follows, which then makes the logits once instead of twice.
  absl::Status EnqueueForward(const Exec& exec, int32_t micro_batch, bool loss_in_backward = false);

  // Copies losses and statistics of all micro-batches to the host.
  absl::Status EnqueueReadout(const Exec& exec);

  // After that copy has arrived: adds the micro-batch's statistics and returns its loss.
  double Collect(int32_t micro_batch);

  // Which of the loaded micro-batches have documents: different kernels are enqueued for them.
  std::vector<bool> loaded_documents() const;

  // Where the losses are on the device: one per micro-batch, `stride` floats apart.
  struct Losses {
    const float* first = nullptr;
    int64_t stride = 0;
  };
  Losses losses() const;

  // Scratch memory that the kernels use of Exec::workspace; 0 on the CPU.
  int64_t scratch_bytes() const;

  // −log p(target) of every position of the last Forward, [B, S]; 0 where nothing was predicted. On
  // a GPU, device memory.
  std::span<const float> token_losses() const;

  // The same of a micro-batch of the step, in host memory. Only with
  // ModelOptions::keep_token_losses, and on a GPU after the copy of EnqueueReadout() has arrived.
  std::span<const float> token_losses(int32_t micro_batch) const;

  // Logits [V] after position `position` of row 0, from which the next token is drawn. Later
  // positions may hold any token; they have no effect. CPU only, and without a context group.
  absl::Status NextLogits(const Exec& exec, std::span<const int32_t> tokens, int32_t position,
                          std::span<float> logits);

  // Measures how much of the exact attention every layer keeps, on the last micro-batch of a step
  // that has run, and adds it to the statistics. `step` chooses the sampled queries. Changes
  // nothing that a later step reads. Where blocks share memory (Recompute::kBlock) it computes each
  // block again, with the parameters as they are now. Only with `training` and `statistics`; waits
  // for the device.
  absl::Status AuditAttention(const Exec& exec, int64_t step);

  // Statistics over all Forwards since the last call, one record per layer; empty without
  // `statistics`. Recomputed blocks are not counted twice.
  std::vector<v1::LayerStats> TakeLayerStats();

  // Bytes of the activations.
  int64_t activation_bytes() const;

 private:
  class Impl;
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nsa::train
