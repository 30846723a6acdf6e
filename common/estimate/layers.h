// The branches of each layer of a model: the keys nsa.layers and nsa.branches of the job file.
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

// The branches that an entry of nsa.layers names, e.g. "cmp+sel". Otherwise InvalidArgument
// `what (limit); what to do`: a word that is no branch, nothing, or a branch named twice.
absl::StatusOr<BranchSet> ParseBranches(std::string_view entry);

// The same as text, in the order cmp, sel, win: "cmp+sel".
std::string BranchesText(const BranchSet& branches);

// The branches of the layers in turn: layer i has element i modulo the size, which is at least 1.
// They are those of nsa.layers, else nsa.branches for every layer, else all branches. What
// preflight refuses (rule BRANCHES_INVALID) is left out.
std::vector<BranchSet> LayerBranchesOf(const v1::NsaSpec& nsa);

// Why nsa.layers is refused in a model of `n_layers` layers.
struct LayersProblem {
  std::string field;  // "nsa.layers" or "nsa.layers[1]"
  std::string what;   // "unknown branch 'swa' (cmp, sel, win)"
  std::string fix;
};
std::optional<LayersProblem> FindLayersProblem(const v1::NsaSpec& nsa, int n_layers);

// Writes valid nsa.layers in one way, so that equal models are equal specs: every entry in the
// order cmp, sel, win; and nsa.branches instead when all entries name the same ones. Leaves the
// spec as it is where FindLayersProblem() finds something.
void NormalizeLayers(int n_layers, v1::NsaSpec* nsa);

}  // namespace nsa
