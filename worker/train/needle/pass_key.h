// Documents that hide a pass key in irrelevant text and ask for it at their end: the test of
// Mohtashami and Jaggi, "Landmark Attention" (arXiv 2305.16300), section 4.2, without its
// introduction, so that short contexts can be tested too.
//
//   The grass is green. … There and back again. …
//   The pass key is 48213. Remember it. 48213 is the pass key.
//   The grass is green. …
//   What is the pass key? The pass key is 48213
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace nsa::train {

// The words between which a key is hidden. Immutable; threads may share one.
class Filler {
 public:
  // The sentences of the paper, over and over.
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

struct PassKeyDocument {
  std::string prompt;  // up to "The pass key is"
  std::string answer;  // a space and the five digits
};

// The shortest document.
inline constexpr size_t kLeastPassKeyBytes = 128;

// A document of `bytes` bytes, at least kLeastPassKeyBytes, prompt and answer together. `depth`
// says where the key is hidden: 0 at the beginning, 1 right before the question. `seed` chooses
// the key and the place in the filler. What is left where no further word fits is filled with dots.
PassKeyDocument MakePassKeyDocument(const Filler& filler, size_t bytes, double depth,
                                    uint64_t seed);

}  // namespace nsa::train
