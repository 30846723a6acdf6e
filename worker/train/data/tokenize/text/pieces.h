// Divides a text by several patterns, one within another: each divides the pieces of the one before
// it, as the Sequence of a tokenizer.json does.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "worker/train/data/tokenize/splitter.h"

namespace nsa::train {

// Of one thread. Needs no memory that grows with the text; the time is that of one search of the
// text by each pattern.
class Pieces {
 public:
  // `splitters` must outlive it. Without any, a text is one piece.
  explicit Pieces(std::span<const Splitter> splitters);

  // Begins with a text, which must outlive the calls of Next() for it.
  void Start(std::string_view text);

  bool done() const { return at_ == text_.size(); }

  // The next piece, which is not empty. Must not be called when done(). The errors of
  // Splitter::Next(), after which no more can be read.
  absl::Status Next(std::string_view* piece);

 private:
  // Where a pattern stands in the piece of the pattern before it.
  struct Level {
    const Splitter* splitter;
    Splitter::Match match;
    Splitter::Piece found;  // the last match
    size_t end = 0;         // of its piece
  };
  // Finds the piece of `level` that begins at at_, in a text that ends with the piece around it.
  absl::Status Find(std::string_view text, Level* level) const;

  std::vector<Level> levels_;
  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace nsa::train
