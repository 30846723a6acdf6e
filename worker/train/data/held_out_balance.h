// Brings the tokens that data.val_fraction holds out near the share that was asked for.
//
// The hashes of the documents decide first. Of many documents they select nearly the share that was
// asked for; of a few they select none, or far too many. Then the documents with the lowest hashes
// are held out, without those that are too large, until there are enough tokens. If no such choice
// is near the share, the end of one passage is held out (passage_reader.h). The document of a file
// that says where its documents begin is never divided: the smallest one that suffices is held out.
// Each part keeps at least a sequence for training.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/job/data/held_out.h"
#include "worker/train/data/corpus.h"
#include "worker/train/data/read/document_hash.h"

namespace nsa::train {

// Where a document may be divided.
enum class Cut {
  kNowhere,
  kAtAnyToken,
  kInText,  // its tokens are the bytes of a text: at a blank line, or else a line, word or
            // character
};

// A document of a corpus, in the store for training or for validation of its part.
struct SplitDocument {
  DocumentHash hash;
  size_t part = 0;
  bool held_out = false;  // its hash says so
  int64_t begin = 0;
  int64_t end = 0;
  Cut cut = Cut::kNowhere;

  int64_t size() const { return end - begin; }
};

class HeldOutBalance {
 public:
  // Every document that is for training or held out, in the order in which they are appended.
  // Memory: of the 1,024 with the lowest hashes.
  void Add(const SplitDocument& document);

  // Changes the corpus if what the hashes hold out is not within `share`, and returns whether it
  // did. It does not if the hashes hold out more documents than are remembered, or if nothing
  // better is possible. The errors of TokenStore::Copy().
  absl::StatusOr<bool> Apply(const HeldOutTokens& share, Corpus* corpus);

 private:
  // Documents of equal content, which stay together.
  struct Copies {
    std::vector<SplitDocument> documents;
    int64_t tokens = 0;
    bool chosen = false;
  };
  // Tokens that move to validation.
  struct Range {
    size_t part;
    int64_t begin;
    int64_t end;
    std::optional<int64_t> document;  // start of the document they end; none for a whole one
  };

  int64_t HeldOutByHash() const;
  bool LeavesTraining(const Copies& copies, int64_t sequence) const;
  int64_t Choose(const HeldOutTokens& share);
  Copies* FindDivisible(int64_t tokens, int64_t sequence);
  Copies* FindSmallest(int64_t least, int64_t most, int64_t sequence);
  bool differs() const;
  void MoveBack(Corpus* corpus);
  absl::StatusOr<Range> EndOf(const SplitDocument& document, int64_t taken,
                              const HeldOutTokens& share, const Corpus& corpus) const;
  void HoldOut(std::optional<Range> divided, Corpus* corpus);

  // By hash, the half that decides first.
  std::map<std::pair<uint64_t, uint64_t>, Copies> lowest_;
  std::optional<std::pair<uint64_t, uint64_t>> limit_;  // documents from here on are not remembered
  int64_t remembered_ = 0;
  std::vector<int64_t> left_;  // tokens of each part for training, without the chosen documents
};

// Where the end of a document of bytes begins that is held out: of the places from `first` to
// `last` in `text` the one at the end of a paragraph, or else of a line, a word or a character,
// that is nearest to `ideal`. `last` is less than the length of the text.
int64_t CutInText(std::string_view text, int64_t first, int64_t ideal, int64_t last);

}  // namespace nsa::train
