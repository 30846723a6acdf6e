// The irrelevant text of a document for a needle test.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace nsa::train {

// The words between which something is hidden. Immutable; threads may share one.
class Filler {
 public:
  // The sentences of Mohtashami and Jaggi (arXiv 2305.16300), over and over.
  Filler();

  // The words of a text, read from a place that depends on the document, and from the beginning
  // again after its end. InvalidArgument when it is not UTF-8, has control characters other than
  // white space, has fewer than kLeastWords words or a word of more than kLongestWord bytes.
  static absl::StatusOr<Filler> FromText(std::string_view text);

  static constexpr size_t kLeastWords = 100;
  static constexpr size_t kLongestWord = 1'000;

  // At most `bytes` bytes: whole words with a space behind each, beginning with word `*next`, which
  // is moved on.
  std::string Words(size_t bytes, size_t* next) const;

  size_t size() const { return words_.size(); }

 private:
  explicit Filler(std::vector<std::string> words) : words_(std::move(words)) {}
  std::vector<std::string> words_;
};

}  // namespace nsa::train
