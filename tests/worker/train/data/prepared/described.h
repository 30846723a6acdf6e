// A corpus as text, for comparisons.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/testing/status_matchers.h"
#include "worker/train/data/corpus.h"

namespace nsa::train {

// One line for each thing that it says, so that a difference is easy to see.
inline std::string Described(const Corpus& corpus) {
  const CorpusInfo& info = corpus.info;
  std::string text =
      absl::StrCat(info.documents, " documents, ", info.tokens, " tokens, ", info.val_documents,
                   " held out, ", info.val_tokens, " tokens, ", info.dropped_documents,
                   " dropped, ", info.null_rows, " null, ", info.inner_separators,
                   " inner separators, ", info.fingerprint, ", separator ", corpus.separator, "\n");
  const auto add = [&](const std::string& name, const TokenStore& store) {
    std::vector<int32_t> tokens(static_cast<size_t>(store.size()));
    EXPECT_OK(store.Copy(0, tokens));
    absl::StrAppend(&text, name, ": ", absl::StrJoin(tokens, " "), "\n");
  };
  for (const CorpusPart& part : corpus.parts) {
    add(absl::StrCat(part.name, " ", part.weight, " train"), *part.train);
    add(absl::StrCat(part.name, " val"), *part.val);
  }
  for (const CorpusSet& set : corpus.sets) add(set.name, *set.tokens);
  return text;
}

}  // namespace nsa::train
