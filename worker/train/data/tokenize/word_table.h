// Finds the token of a piece that is a token as a whole, as most words are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::train {

// A hash table that is filled once; then threads may share it.
class WordTable {
 public:
  // Removes all words and makes room for `words`.
  void Reserve(size_t words);

  // Adds a word that is not there; at most as many as were reserved.
  void Add(std::string_view word, int32_t token);

  // The token of a word, or −1.
  int32_t Find(std::string_view word) const;

 private:
  struct Slot {
    uint64_t hash = 0;
    uint32_t begin = 0;  // in text_
    uint32_t size = 0;
    int32_t token = -1;  // −1: the slot is free
  };

  std::vector<Slot> slots_;  // a power of two, at most half of them used
  std::string text_;         // all words
};

}  // namespace nsa::train
