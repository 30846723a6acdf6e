// Splits a text into the pieces in which byte pairs are merged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/train/data/tokenize/ascii_split.h"

struct pcre2_real_code_8;
struct pcre2_real_match_context_8;
struct pcre2_real_match_data_8;

namespace nsa::train {

// Immutable; threads may share one.
class Splitter {
 public:
  // Of a pattern in the syntax of PCRE2; an empty one does not split. `ascii` does the same for
  // pieces of ASCII, or is null. InvalidArgument for a pattern that is none, or that may match
  // nothing at all.
  static absl::StatusOr<Splitter> Make(const std::string& pattern, AsciiSplit ascii);

  // What a search needs besides the pattern; of one thread.
  struct FreeMatch {
    void operator()(pcre2_real_match_data_8* match) const;
  };
  using Match = std::unique_ptr<pcre2_real_match_data_8, FreeMatch>;
  Match NewMatch() const;

  struct Piece {
    size_t begin = 0;
    size_t end = 0;
  };
  // The next match from `begin` on, which is below text.size(); both ends of the text if there is
  // none. What is before it, which no pattern that is well known leaves except for bytes that are
  // not UTF-8, is a piece too. InvalidArgument if the pattern takes too long, or matches nothing.
  absl::Status Next(std::string_view text, size_t begin, const Match& match, Piece* piece) const {
    if (ascii_ != nullptr) {
      piece->begin = begin;
      piece->end = ascii_(text, begin);
      if (piece->end != 0) return absl::OkStatus();
    }
    return Search(text, begin, match, piece);
  }

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  struct FreeContext {
    void operator()(pcre2_real_match_context_8* context) const;
  };
  int Find(std::string_view text, size_t begin, uint32_t options, const Match& match) const;
  absl::Status Search(std::string_view text, size_t begin, const Match& match, Piece* piece) const;

  std::unique_ptr<pcre2_real_code_8, FreeCode> code_;  // null: one piece
  std::unique_ptr<pcre2_real_match_context_8, FreeContext> limits_;
  AsciiSplit ascii_ = nullptr;
};

}  // namespace nsa::train
