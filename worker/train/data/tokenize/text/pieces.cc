#include "worker/train/data/tokenize/text/pieces.h"

#include "common/base/status.h"

namespace nsa::train {

Pieces::Pieces(std::span<const Splitter> splitters) {
  levels_.reserve(splitters.size());
  for (const Splitter& splitter : splitters) {
    levels_.push_back({.splitter = &splitter, .match = splitter.NewMatch()});
  }
}

void Pieces::Start(std::string_view text) {
  text_ = text;
  at_ = 0;
  for (Level& level : levels_) {
    level.found = {};
    level.end = 0;
  }
}

absl::Status Pieces::Next(std::string_view* piece) {
  size_t open = levels_.size();  // levels whose pieces go on behind at_
  while (open > 0 && levels_[open - 1].end <= at_) --open;
  size_t end = open > 0 ? levels_[open - 1].end : text_.size();
  for (; open < levels_.size(); ++open) {
    NSA_RETURN_IF_ERROR(Find(text_.substr(0, end), &levels_[open]));
    end = levels_[open].end;
  }
  *piece = text_.substr(at_, end - at_);
  at_ = end;
  return absl::OkStatus();
}

absl::Status Pieces::Find(std::string_view text, Level* level) const {
  Splitter::Piece& found = level->found;
  // What is between two matches is a piece, too; then the second match is known already.
  if (found.begin != at_ || found.end <= at_) {
    NSA_RETURN_IF_ERROR(level->splitter->Next(text, at_, level->match, &found));
  }
  level->end = found.begin > at_ ? found.begin : found.end;
  return absl::OkStatus();
}

}  // namespace nsa::train
