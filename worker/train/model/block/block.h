// One block of the decoder, forward and backward:
//
//   mid = x + W_out · NSA(RMSNorm1(x));   y = mid + fc2(act(fc1(RMSNorm2(mid))))
//
// With SwiGLU act is silu(gate(h)) · fc1(h), and "fc1" below stands for [gate; fc1], one matrix.
//
// The block's tensors are plain structs of offsets: BlockPlaces in the parameter arena,
// BlockActivations and BlockWorkspace in the activation arena. There is no other state.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/nn/copy.h"
#include "kernels/nsa/layer/nsa_layer.h"
#include "kernels/nsa/layer/projections.h"
#include "worker/train/model/activations.h"
#include "worker/train/model/context/context_group.h"
#include "worker/train/model/model.h"
#include "worker/train/model/model_config.h"
#include "worker/train/model/parameters.h"

namespace nsa::train {

struct PhiPlaces {
  Place position, fc1_w, fc1_b, fc2_w, fc2_b;
};

// Where the parameters of block `layer` are, and their gradients.
struct BlockPlaces {
  Place norm1;
  Place projections;      // [W_Q; W_K_sel; W_V_sel; …], one matrix [width, D]
  Place projection_bias;  // [width], in the order of their columns; may be empty
  Place out;
  Place q_norm, k_norm;  // of normalized heads; may be empty
  Place gate_fc1_w, gate_fc1_b, gate_fc2_w, gate_fc2_b;
  PhiPlaces phi_k, phi_v;
  Place norm2, fc1, fc2;  // fc1: with SwiGLU [gate; fc1]

  static BlockPlaces Of(const ParameterLayout& layout, int32_t layer);
};

// The parameters of a block's gate and φ; those that it does not have are empty.
NsaLayerParams AttentionParams(const Arena& parameters, const BlockPlaces& places);

// The weights of a block's normalized heads; empty if it does not have them.
HeadNormWeights HeadNormWeightsOf(const Arena& parameters, const BlockPlaces& places);

// Where all parameters of a model are.
struct ModelPlaces {
  Place embed, norm_f, head;  // the embedding may be the head
  bool tied() const { return head.offset == embed.offset; }
  std::vector<BlockPlaces> blocks;

  static ModelPlaces Of(const ParameterLayout& layout, int32_t layers);

  // Model::PartBegins().
  std::vector<int64_t> PartBegins() const;

  // The gradients, of `size` elements of an arena, that backward always adds to. The others, of the
  // weights of projections, MLPs and head, it can overwrite (BlockContext::overwrite); an embedding
  // that is also the head is overwritten as the head and then added to.
  std::vector<ElementRange> AddedTo(int64_t size) const;
};

// What a block's forward saves for its backward. R = B·S rows. With a context group of N ranks R is
// B·S/N, but the attention (v, saved and its part of the workspace) has all S tokens of H/N
// heads and G/N groups: as many elements.
//
// h1, h2 and a are saved with Recompute::kNothing only. Otherwise they have no memory of their own
// and use that of the workspace, and backward computes them again on the way.
struct BlockActivations {
  using Slot = ActivationArena::Slot;
  Slot rstd1, h1;                 // [R], [R, D]: RMSNorm1(x)
  std::array<Slot, kBranches> v;  // [R, G·dv]
  Slot saved;                     // of the attention
  Slot o;                         // [R, H·dv]
  Slot o_heads;                   // with a context group and no gate: o before the exchange
  Slot mid;                       // [R, D]
  Slot rstd2, h2;                 // [R], [R, D]: RMSNorm2(mid)
  Slot u, a;                      // [R, mlp_inputs], [R, hidden]: fc1's output, its activation

  // All but the following, of layer `layer`.
  void Plan(const ModelConfig& config, int32_t layer, ActivationArena* arena);
  // u, which BlockRecomputeMlp() computes.
  void PlanMlp(const ModelConfig& config, ActivationArena* arena);
  // h1, h2 and a.
  void PlanNorms(const ModelConfig& config, ActivationArena* arena);
};

// Holds nothing between calls, except that `h` still has the output of RMSNorm2 after forward or
// BlockRecomputeMlp() of the block whose backward comes next. The attention and the MLP use the
// same memory in turn.
struct BlockWorkspace {
  using Slot = ActivationArena::Slot;
  Slot h;   // [R, D]: output of a norm that is not saved
  Slot dh;  // [R, D]: the gradient of a norm's output
  // Of the MLP.
  Slot hidden;  // [R, hidden]: in forward act(u) that is not saved; in backward gradients
  // Of the attention.
  Slot wide;       // [R, width]: all projections in one matrix, or its gradient
  Slot attention;  // bytes
  Slot d_o;        // [R, H·dv]
  // The parts of wide's gradient, unless the attention writes them there (WritesWide()).
  Slot dq;                             // [R, H·dk]
  std::array<Slot, kBranches> dk, dv;  // [R, G·dk], [R, G·dv]
  // With a context group only: what is exchanged, and with a gate o before the exchange.
  Slot parts, o_heads;  // [R, width], [R, H·dv]

  // Of layer `layer`; for backward as well with `training`.
  static BlockWorkspace Plan(const ModelConfig& config, int32_t layer, bool training,
                             ActivationArena* arena);
};

// The memory of every block: its own, or shared by all as far as backward computes again what was
// in it.
std::vector<BlockActivations> PlanActivations(const ModelConfig& config, bool training,
                                              ActivationArena* arena);
// The workspace of every block, all in the same memory.
std::vector<BlockWorkspace> PlanWorkspaces(const ModelConfig& config, bool training,
                                           ActivationArena* arena);

// Statistics that the kernels write; an empty tensor is not written.
struct BlockStatistics {
  Tensor gate;          // fp32 [kGateStats]
  Tensor selection;     // int64 [kSelectionStats]
  Tensor keys_read;     // int64 [kBranches]
  bool zeroed = false;  // all of them are 0 before the block runs
};

// What forward and backward need.
struct BlockContext {
  const Exec& exec;
  const ModelConfig& config;
  NsaLayerConfig attention;  // of this layer
  const BlockPlaces& places;
  const Arena& parameters;
  const ActivationArena& arena;
  const BlockActivations& activations;
  const BlockWorkspace& workspace;
  ConstTensor doc_start;          // optional int32 [B, S]
  ContextGroup* group = nullptr;  // null: one rank has whole sequences
  // Backward overwrites the gradients that are not in ModelPlaces::AddedTo().
  bool overwrite = false;
};

// x [R, D] → y [R, D]. Without `y` it computes only what backward needs, for gradient
// checkpointing.
absl::Status BlockForward(const BlockContext& block, const ConstTensor& x, const Tensor& y,
                          const BlockStatistics& statistics);

// Computes again what forward left in u, from mid: the same bits.
absl::Status BlockRecomputeMlp(const BlockContext& block);

// Backward in two calls, one after the other. `dx` [R, D] holds the gradient of y, becomes that of
// mid, then that of x; gradients of parameters are added to `gradients`. The first call completes
// those of norm2, fc1 and fc2.
absl::Status BlockMlpBackward(const BlockContext& block, const Tensor& dx, Arena* gradients);
absl::Status BlockAttentionBackward(const BlockContext& block, const ConstTensor& x,
                                    const Tensor& dx, Arena* gradients);

}  // namespace nsa::train
