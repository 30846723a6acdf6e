// The branches of the attention, their order and their names.
#pragma once

#include <array>
#include <cstdint>

namespace nsa {

// Index of a branch in every array that has one element for each branch.
enum Branch : uint8_t { kCmp = 0, kSel = 1, kWin = 2 };
inline constexpr int kBranches = 3;

// Names of the branches in job files, metrics and parameter names.
inline constexpr std::array<const char*, kBranches> kBranchNames = {"cmp", "sel", "win"};

// Which branches a model has.
using BranchSet = std::array<bool, kBranches>;

}  // namespace nsa
