// What a misspelt word was probably meant to be.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nsa {

// Edits (insert, delete, replace, swap of neighbours) that turn `a` into `b`. Words over 64
// characters count as infinitely far.
int EditDistance(std::string_view a, std::string_view b);

// The nearest of `candidates` within a third of the word's length (at least 1, case ignored), or
// empty. The first one wins a tie.
std::string Nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace nsa
