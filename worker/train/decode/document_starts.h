// Where the documents of a sequence begin, for tokens that come a few at a time.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

namespace nsa::train {

class DocumentStarts {
 public:
  // `separator`: the token that begins a document; none: all of a sequence is one.
  explicit DocumentStarts(std::optional<int32_t> separator) : separator_(separator) {}

  // For each of the tokens (the first is at `position`): where its document begins. Stays
  // until the next call.
  std::span<const int32_t> Of(std::span<const int32_t> tokens, int64_t position) {
    starts_.clear();
    for (const int32_t token : tokens) {
      if (token == separator_) document_ = static_cast<int32_t>(position + std::ssize(starts_));
      starts_.push_back(document_);
    }
    return starts_;
  }

  void Clear() { document_ = 0; }

 private:
  const std::optional<int32_t> separator_;
  int32_t document_ = 0;  // where that of the next token begins, unless it is a separator
  std::vector<int32_t> starts_;
};

}  // namespace nsa::train
