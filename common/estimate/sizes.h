// The sizes that the formulas of this folder share. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "common/estimate/estimate.h"
#include "common/estimate/model_options.h"
#include "common/estimate/muon_plan.h"
#include "common/nsa/branch.h"
#include "nsa/v1/job.pb.h"

namespace nsa {

// 64-bit sizes that the formulas share, for layers with this attention.
struct Sizes {
  Sizes(const v1::JobSpec& spec, const LayerAttention& layer)
      : dim(spec.model().dim()),
        vocab(VocabOf(spec)),
        hidden(MlpUnitsOf(spec.model())),
        mlp_inputs(MlpInputsOf(spec.model())),
        q(int64_t{spec.model().n_heads()} * spec.model().d_k()),
        o(int64_t{spec.model().n_heads()} * spec.model().d_v()),
        k(int64_t{spec.model().n_kv_groups()} * spec.model().d_k()),
        v(int64_t{spec.model().n_kv_groups()} * spec.model().d_v()),
        branches(layer.branches),
        full(layer.full),
        n_branches(CountOf(branches)),
        phi_mlp(branches[kCmp] && spec.nsa().phi() == v1::PHI_MLP) {}

  int64_t dim, vocab;
  int64_t hidden, mlp_inputs;  // units of the MLP, and outputs of its first product
  int64_t q, o, k, v;          // width over all heads; k and v of one branch
  BranchSet branches;
  bool full;           // the window has all tokens
  int64_t n_branches;  // also the K/V projections and gate rows per block
  bool phi_mlp;

  // Weights of the matrix products in a block: of the attention, of the MLP, and all.
  int64_t attention_matrices() const { return dim * q + n_branches * dim * (k + v) + dim * o; }
  int64_t mlp_matrices() const { return dim * (mlp_inputs + hidden); }
  int64_t block_matrices() const { return attention_matrices() + mlp_matrices(); }
};

// Layers with the same attention.
struct LayerKind {
  Sizes sizes;
  int64_t layers;  // how many
};

// The kinds of layers, at least one. Kinds differ in their attention only.
std::vector<LayerKind> KindsOf(const v1::JobSpec& spec);

// The largest size of a kind.
inline int64_t Largest(const std::vector<LayerKind>& kinds, auto size_of) {
  int64_t largest = 0;
  for (const LayerKind& kind : kinds) largest = std::max<int64_t>(largest, size_of(kind.sizes));
  return largest;
}

// The precision of weights and activations on the job's device.
bool IsBf16(const v1::JobSpec& spec);

// The matrices that Muon updates, by shape; empty with AdamW.
std::map<MuonShape, int64_t> MuonMatrices(const v1::JobSpec& spec,
                                          const std::vector<LayerKind>& kinds);

}  // namespace nsa
