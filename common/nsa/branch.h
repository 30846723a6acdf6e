// The branches of the attention, their order and their names.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

namespace nsa {

// Index of a branch in every array that has one element for each branch.
enum Branch : uint8_t { kCmp = 0, kSel = 1, kWin = 2 };
inline constexpr int kBranches = 3;

// Names of the branches in job files, metrics and parameter names.
inline constexpr std::array<const char*, kBranches> kBranchNames = {"cmp", "sel", "win"};

// The order of the branches' keys and values among the columns of the projection, and thus in
// checkpoints.
inline constexpr std::array<Branch, kBranches> kProjectionOrder = {kSel, kWin, kCmp};

// Which branches a model has.
using BranchSet = std::array<bool, kBranches>;
constexpr int CountOf(const BranchSet& branches) {
  return static_cast<int>(std::count(branches.begin(), branches.end(), true));
}

// The attention of a layer.
struct LayerAttention {
  BranchSet branches = {};
  // Dense attention: the branch win alone, with a window of all tokens.
  bool full = false;

  bool operator==(const LayerAttention&) const = default;
};
// What job files call such a layer, in place of branches.
inline constexpr const char* kFullName = "full";

// Calls run(std::integral_constant<Branch, branch>()), for code that has the branch as a template
// argument, and returns its result. `branch` must be one of the kBranches.
template <int kFrom = 0, class Run>
constexpr auto WithBranch(Branch branch, Run run) {
  if constexpr (kFrom + 1 < kBranches) {
    if (branch != kFrom) return WithBranch<kFrom + 1>(branch, run);
  }
  return run(std::integral_constant<Branch, static_cast<Branch>(kFrom)>());
}

}  // namespace nsa
