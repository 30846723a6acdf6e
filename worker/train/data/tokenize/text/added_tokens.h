// The added tokens of a tokenizer.json that are tokens wherever a text spells them.
//
// They are cut out of the text before it is split. At each place the longest one counts, and the
// search goes on behind it, as Hugging Face's library does. Special tokens are text here
// (bpe_files.h), but what is within the spelling of one is no added token either.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"

namespace nsa::train {

// The most bytes that the added tokens of a file may have together, and that one may have.
inline constexpr size_t kMostAddedBytes = size_t{1} << 20;
inline constexpr size_t kLongestAddedToken = 256;

// Filled once; then threads may share it.
class AddedTokens {
 public:
  struct Rules {
    int32_t id = 0;
    bool special = false;
    bool lstrip = false;       // the token takes the white space before it, and
    bool rstrip = false;       // that behind it
    bool single_word = false;  // no token where a letter, a digit, … is next to it
  };

  // Adds a token; one with the same text that is there already stays. InvalidArgument if it is
  // empty, above the limits, or begins with white space while another token that is not special
  // has rstrip: then both would take it.
  absl::Status Add(const std::string& text, const Rules& rules);

  // Whether no text has any: only special tokens, or none, were added.
  bool empty() const { return ordinary_ == 0; }

  // A stretch of a text: an added token, or what is before the next one.
  struct Stretch {
    std::string_view text;
    int32_t token = kNone;
  };
  static constexpr int32_t kNone = -1;

  // Goes through a text from one stretch to the next. `tokens` and `text` must outlive it.
  class Walk {
   public:
    Walk() = default;
    Walk(const AddedTokens& tokens, std::string_view text) : tokens_(&tokens), text_(text) {}
    bool done() const { return at_ == text_.size(); }
    // The next stretch; must not be called when done().
    Stretch Next();

   private:
    const AddedTokens* tokens_ = nullptr;
    std::string_view text_;
    size_t at_ = 0;
    size_t found_ = 0;  // where the token begins that was found behind the last stretch
    Stretch next_;      // that token, with the white space that it takes; empty: none was found
  };

 private:
  // The longest token that begins at `at`, special ones included; null, or its rules and size.
  const Rules* LongestAt(std::string_view text, size_t at, size_t* size) const;

  // The token that was found at `at`, which is behind `begin`, with the white space that it takes.
  static Stretch WithSpace(std::string_view text, size_t begin, size_t at, size_t size,
                           const Rules& rules);

  // A tree of bytes: the node behind a node and a byte. Node 0 is the root.
  std::unordered_map<uint64_t, uint32_t> next_;
  std::vector<int32_t> tokens_{kNone};  // by node: of rules_, the token that ends there
  std::vector<Rules> rules_;
  std::vector<bool> first_two_ = std::vector<bool>(1 << 16);  // that some token begins with
  size_t bytes_ = 0;
  size_t ordinary_ = 0;  // tokens that are not special
  bool rstrip_ = false;  // of one of these
  bool space_ = false;   // one of these begins with white space
};

}  // namespace nsa::train
