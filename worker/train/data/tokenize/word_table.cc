#include "worker/train/data/tokenize/word_table.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>

namespace nsa::train {

void WordTable::Reserve(size_t words) {
  slots_.assign(std::bit_ceil(std::max<size_t>(2 * words, 2)), Slot());
  text_.clear();
}

void WordTable::Add(std::string_view word, int32_t token) {
  const uint64_t hash = XXH3_64bits(word.data(), word.size());
  size_t at = hash & (slots_.size() - 1);
  while (slots_[at].token >= 0) at = (at + 1) & (slots_.size() - 1);
  slots_[at] = {.hash = hash,
                .begin = static_cast<uint32_t>(text_.size()),
                .size = static_cast<uint32_t>(word.size()),
                .token = token};
  text_ += word;
}

int32_t WordTable::Find(std::string_view word) const {
  if (slots_.empty()) return -1;
  const uint64_t hash = XXH3_64bits(word.data(), word.size());
  for (size_t at = hash & (slots_.size() - 1); slots_[at].token >= 0;
       at = (at + 1) & (slots_.size() - 1)) {
    const Slot& slot = slots_[at];
    if (slot.hash != hash || slot.size != word.size()) continue;
    if (std::string_view(text_).substr(slot.begin, slot.size) == word) return slot.token;
  }
  return -1;
}

}  // namespace nsa::train
