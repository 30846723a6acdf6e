#include "worker/train/data/held_out_balance.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/job/data_source.h"

namespace nsa::train {
namespace {

// Where the hashes alone hold out more documents than this, their share is near enough.
constexpr int64_t kMostRemembered = 1024;

// How good a place is to divide a text; 0 is the best.
int RankOfPlace(std::string_view before, char next) {
  if (before.ends_with("\n\n") || before.ends_with("\n\r\n")) return 0;
  if (before.ends_with('\n')) return 1;
  if (before.ends_with(' ')) return 2;
  const bool within_character = (static_cast<unsigned char>(next) & 0xc0) == 0x80;
  return within_character ? 4 : 3;
}

}  // namespace

int64_t CutInText(std::string_view text, int64_t first, int64_t ideal, int64_t last) {
  int64_t best = ideal;
  int best_rank = 5;
  for (int64_t place = first; place <= last; ++place) {
    const auto at = static_cast<size_t>(place);
    const int rank = RankOfPlace(text.substr(0, at), text[at]);
    const bool nearer = std::abs(place - ideal) < std::abs(best - ideal);
    if (rank > best_rank || (rank == best_rank && !nearer)) continue;
    best = place;
    best_rank = rank;
  }
  return best;
}

void HeldOutBalance::Add(const SplitDocument& document) {
  const std::pair key(document.hash.second, document.hash.first);
  if (limit_ && key >= *limit_) return;
  Copies& copies = lowest_[key];
  copies.documents.push_back(document);
  copies.tokens += document.size();
  copies.chosen = document.held_out;
  ++remembered_;
  while (remembered_ > kMostRemembered) {
    const auto highest = std::prev(lowest_.end());
    remembered_ -= std::ssize(highest->second.documents);
    limit_ = highest->first;
    lowest_.erase(highest);
  }
}

absl::StatusOr<bool> HeldOutBalance::Apply(const HeldOutTokens& share, Corpus* corpus) {
  int64_t held_out = 0, all = 0;
  for (const CorpusPart& part : corpus->parts) {
    held_out += part.val->size();
    left_.push_back(part.val->size() + part.train->size());
    all += left_.back();
  }
  const bool near = held_out >= share.least && held_out <= share.most;
  // Without room for a sequence on both sides the rows are refused later, whatever is held out.
  if (near || HeldOutByHash() != held_out || all < 2 * share.sequence) return false;
  const int64_t taken = Choose(share);
  Copies* divided = nullptr;
  if (taken < share.least) {
    divided = FindDivisible(share.wanted - taken, share.sequence);
    Copies* const whole = divided == nullptr
                              ? FindSmallest(share.least - taken, all - taken - 1, share.sequence)
                              : nullptr;
    if (whole != nullptr) whole->chosen = true;
  }
  if (divided == nullptr && !differs()) return false;
  MoveBack(corpus);
  std::optional<Range> end;
  if (divided != nullptr) {
    NSA_ASSIGN_OR_RETURN(end, EndOf(divided->documents.front(), taken, share, *corpus));
  }
  HoldOut(end, corpus);
  return true;
}

// All tokens for validation, unless some of their documents are not remembered.
int64_t HeldOutBalance::HeldOutByHash() const {
  int64_t tokens = 0;
  for (const auto& [hash, copies] : lowest_) {
    if (copies.documents.front().held_out) tokens += copies.tokens;
  }
  return tokens;
}

// Chooses documents by their hashes that are not too large. Returns their tokens.
int64_t HeldOutBalance::Choose(const HeldOutTokens& share) {
  int64_t taken = 0;
  for (auto& [hash, copies] : lowest_) {
    copies.chosen = taken < share.wanted && taken + copies.tokens <= share.most &&
                    LeavesTraining(copies, share.sequence);
    if (!copies.chosen) continue;
    taken += copies.tokens;
    for (const SplitDocument& document : copies.documents) left_[document.part] -= document.size();
  }
  return taken;
}

// Whether every part keeps a sequence for training if these documents are held out as well.
bool HeldOutBalance::LeavesTraining(const Copies& copies, int64_t sequence) const {
  std::map<size_t, int64_t> taken;
  for (const SplitDocument& document : copies.documents) taken[document.part] += document.size();
  return std::ranges::all_of(
      taken, [&](const auto& part) { return left_[part.first] - part.second >= sequence; });
}

// The first document that is not chosen, has no copies and can be divided after these tokens.
HeldOutBalance::Copies* HeldOutBalance::FindDivisible(int64_t tokens, int64_t sequence) {
  for (auto& [hash, copies] : lowest_) {
    const SplitDocument& document = copies.documents.front();
    const bool alone = copies.documents.size() == 1;
    const bool enough = document.size() > tokens && left_[document.part] - tokens >= sequence;
    if (!copies.chosen && alone && document.cut != Cut::kNowhere && enough) return &copies;
  }
  return nullptr;
}

// The smallest document that is not chosen and has from `least` to `most` tokens with its copies.
HeldOutBalance::Copies* HeldOutBalance::FindSmallest(int64_t least, int64_t most,
                                                     int64_t sequence) {
  Copies* smallest = nullptr;
  for (auto& [hash, copies] : lowest_) {
    if (copies.chosen || copies.tokens < least || copies.tokens > most) continue;
    if (!LeavesTraining(copies, sequence)) continue;
    if (smallest == nullptr || copies.tokens < smallest->tokens) smallest = &copies;
  }
  return smallest;
}

bool HeldOutBalance::differs() const {
  return std::any_of(lowest_.begin(), lowest_.end(), [](const auto& one) {
    return one.second.chosen != one.second.documents.front().held_out;
  });
}

// Moves documents that are held out, but not chosen, to the end of the training documents.
void HeldOutBalance::MoveBack(Corpus* corpus) {
  std::vector<SplitDocument*> back;
  for (auto& [hash, copies] : lowest_) {
    for (SplitDocument& document : copies.documents) {
      if (document.held_out && !copies.chosen) back.push_back(&document);
    }
  }
  // The last ones first, so that the places of the others stay as they are.
  std::ranges::sort(back, [](const auto* a, const auto* b) { return a->begin > b->begin; });
  for (SplitDocument* document : back) {
    const CorpusPart& part = corpus->parts[document->part];
    const int64_t begin = part.train->size();
    part.val->Move(document->begin, document->end, part.train.get());
    document->end = begin + document->size();
    document->begin = begin;
    document->held_out = false;
    ++corpus->info.documents;
    --corpus->info.val_documents;
  }
}

// The end of a training document that is held out beside `taken` tokens.
absl::StatusOr<HeldOutBalance::Range> HeldOutBalance::EndOf(const SplitDocument& document,
                                                            int64_t taken,
                                                            const HeldOutTokens& share,
                                                            const Corpus& corpus) const {
  Range range = {document.part, document.end - (share.wanted - taken), document.end,
                 document.begin};
  if (document.cut != Cut::kInText) return range;
  const int64_t first = document.end - std::min(share.most - taken, document.size() - 1);
  const int64_t last = document.end - std::max<int64_t>(share.least - taken, 1);
  const int64_t from = std::max(document.begin, first - 3);  // as many bytes as a blank line has
  std::vector<Token> tokens(static_cast<size_t>(last + 1 - from));
  NSA_RETURN_IF_ERROR(corpus.parts[document.part].train->Copy(from, tokens));
  const std::string text(tokens.begin(), tokens.end());
  range.begin = from + CutInText(text, first - from, range.begin - from, last - from);
  return range;
}

// Moves the chosen documents and the end of one to validation, where the end begins as a document:
// with a separator, which is the first token of the document that it was of.
void HeldOutBalance::HoldOut(std::optional<Range> divided, Corpus* corpus) {
  std::vector<Range> ranges;
  if (divided) ranges.push_back(*divided);
  for (const auto& [hash, copies] : lowest_) {
    for (const SplitDocument& document : copies.documents) {
      if (copies.chosen && !document.held_out) {
        ranges.push_back({document.part, document.begin, document.end, std::nullopt});
      }
    }
  }
  std::ranges::sort(ranges, [](const Range& a, const Range& b) { return a.begin > b.begin; });
  for (const Range& range : ranges) {
    const CorpusPart& part = corpus->parts[range.part];
    if (range.document && corpus->separator != kNoSeparator) {
      part.val->Append(*part.train, *range.document, *range.document + 1);
    }
    part.train->Move(range.begin, range.end, part.val.get());
    if (!range.document) --corpus->info.documents;
    ++corpus->info.val_documents;
  }
}

}  // namespace nsa::train
