// Finds the word that a misspelt word was probably meant to be.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nsa {

// Number of edits (insert, delete, replace, or swap of neighbouring characters) that turn `a` into
// `b`; 2^20 if a word has more than 64 characters.
int EditDistance(std::string_view a, std::string_view b);

// The candidate with the smallest edit distance; empty if none is within a third of the word's
// length (at least 1). Case is ignored. If several are equally near, the first one.
std::string Nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace nsa
