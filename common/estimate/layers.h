// The attention of each layer of a model: the keys nsa.layers and nsa.branches of the job file.
// Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/nsa/branch.h"
#include "nsa/v1/job.pb.h"

namespace nsa {

// What an entry of nsa.layers names: branches, e.g. "cmp+sel", or "full". Otherwise InvalidArgument
// `what (limit); what to do`: a word that is no branch, nothing, a branch named twice, or full
// beside a branch.
absl::StatusOr<LayerAttention> ParseLayer(std::string_view entry);

// The same as text, branches in the order cmp, sel, win: "cmp+sel", "full".
std::string LayerText(const LayerAttention& layer);

// The attention of the layers in turn: layer i has element i modulo the size, which is at least 1.
// It is that of nsa.layers, else nsa.branches for every layer, else all branches. What preflight
// refuses (rule BRANCHES_INVALID) is left out.
std::vector<LayerAttention> LayersOf(const v1::NsaSpec& nsa);

// The attention of each of `n_layers` layers.
std::vector<LayerAttention> AllLayersOf(const v1::NsaSpec& nsa, int n_layers);

// Sets nsa.layers to the shortest list that gives layer i the attention `layers[i]`. There must be
// at least one layer; each is full or has a branch.
void SetLayers(std::vector<LayerAttention> layers, v1::NsaSpec* nsa);

// Whether a layer of the job reads all tokens and nothing else: it is full, or has the window alone
// and that is no shorter than a sequence.
bool IsDense(const LayerAttention& layer, const v1::JobSpec& spec);

// Why nsa.layers is refused in a model of `n_layers` layers.
struct LayersProblem {
  std::string field;  // "nsa.layers" or "nsa.layers[1]"
  std::string what;   // "unknown branch 'swa' (cmp, sel, win)"
  std::string fix;
};
std::optional<LayersProblem> FindLayersProblem(const v1::NsaSpec& nsa, int n_layers);

// Writes valid nsa.layers in one way, so that equal models are equal specs: every entry in the
// order cmp, sel, win; and nsa.branches instead when all entries name the same ones, or the one
// entry "full". Leaves the spec as it is where FindLayersProblem() finds something.
void NormalizeLayers(int n_layers, v1::NsaSpec* nsa);

}  // namespace nsa
