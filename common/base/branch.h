// The branches of the attention: how many there are, in which order, and their names.
#pragma once

#include <array>
#include <cstdint>

namespace nsa {

// The order of the branches wherever there is one value for each branch.
enum Branch : uint8_t { kCmp = 0, kSel = 1, kWin = 2 };
inline constexpr int kBranches = 3;

// As job files, metrics and parameter names spell them.
inline constexpr std::array<const char*, kBranches> kBranchNames = {"cmp", "sel", "win"};

// Which branches a model has.
using BranchSet = std::array<bool, kBranches>;

}  // namespace nsa
