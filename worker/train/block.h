// One block of the decoder, forward and backward:
//
//   mid = x + W_out · Attention(RMSNorm1(x));   y = mid + fc2(silu(fc1(RMSNorm2(mid))))
//
// The block's tensors are plain structs of places: BlockPlaces in the parameter arena,
// BlockActivations and BlockWorkspace in the activation arena. Nothing here has state.
#pragma once

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/nsa/attention.h"
#include "worker/train/activations.h"
#include "worker/train/model.h"
#include "worker/train/model_config.h"
#include "worker/train/parameters.h"

namespace nsa {

struct PhiPlaces {
  Place position, fc1_w, fc1_b, fc2_w, fc2_b;
};

// Where block `layer` has its parameters, and their gradients.
struct BlockPlaces {
  Place norm1;
  Place projections;  // [W_Q; W_K_sel; W_V_sel; …], one matrix [width, D]
  Place out;
  Place gate_fc1_w, gate_fc1_b, gate_fc2_w, gate_fc2_b;
  PhiPlaces phi_k, phi_v;
  Place norm2, fc1, fc2;

  static BlockPlaces Of(const ParameterLayout& layout, int32_t layer);
};

// What a block's forward leaves for its backward. R = B·S rows.
struct BlockActivations {
  using Slot = ActivationArena::Slot;
  Slot rstd1, h1;                 // [R], [R, D]: RMSNorm1(x)
  Slot q;                         // [R, H·dk], not rotated
  std::array<Slot, kBranches> v;  // [R, G·dv]
  Slot saved;                     // of the attention
  Slot o;                         // [R, H·dv]
  Slot mid;                       // [R, D]
  Slot rstd2, h2;                 // [R], [R, D]: RMSNorm2(mid)
  Slot u, a;                      // [R, hidden]: fc1's output, and its SiLU

  static BlockActivations Plan(const ModelConfig& config, ActivationArena* arena);
};

// Holds nothing between calls; one serves all blocks.
struct BlockWorkspace {
  using Slot = ActivationArena::Slot;
  Slot wide;                       // [R, width]: all projections side by side, or their gradient
  std::array<Slot, kBranches> dk;  // [R, G·dk]
  Slot attention;                  // bytes
  Slot dq;                         // [R, H·dk]
  std::array<Slot, kBranches> dv;  // [R, G·dv]
  Slot d_o;                        // [R, H·dv]
  Slot dh;                         // [R, D]
  Slot da;                         // [R, hidden]

  static BlockWorkspace Plan(const ModelConfig& config, bool training, ActivationArena* arena);
};

// Statistics that the kernels write; empty tensors where not wanted.
struct BlockStatistics {
  Tensor gate;       // fp32 [kGateStats]
  Tensor selection;  // int64 [kSelectionStats]
  Tensor keys_read;  // int64 [kBranches]
};

// What both directions need.
struct BlockContext {
  const Exec& exec;
  const ModelConfig& config;
  const BlockPlaces& places;
  const Arena& parameters;
  const ActivationArena& arena;
  const BlockActivations& activations;
  const BlockWorkspace& workspace;
  ConstTensor doc_start;  // optional int32 [R]
};

// x [R, D] → y [R, D]. Without `y` only what backward needs is made: the recomputation of gradient
// checkpointing.
absl::Status BlockForward(const BlockContext& block, const ConstTensor& x, const Tensor& y,
                          const BlockStatistics& statistics);

// `dx` [R, D] holds the gradient of y and becomes the gradient of x; gradients of parameters are
// added to `gradients`.
absl::Status BlockBackward(const BlockContext& block, const ConstTensor& x, const Tensor& dx,
                           Arena* gradients);

}  // namespace nsa
