#include "client/commands/model/needle_text.h"

#include "absl/strings/str_cat.h"
#include "client/connect/local/input_file.h"
#include "common/base/status.h"

namespace nsa::client {

void AddNeedleText(Options* options, NeedleText* text) {
  options->Word("--task", {"key", "keys", "values", "trace", "count"}, &text->task,
                "What is hidden and asked for: one pass key, one of four, three of one name, a "
                "variable that others lead to, how often a sentence is there (default: key)");
  options->Text("--filler", "FILE", &text->filler,
                "Text whose words stand around it (default: the five sentences of the test's "
                "authors, again and again)");
  options->Number("--seed", &text->seed, {},
                  "Chooses what is hidden, and places in the filler; the same seed makes the same "
                  "documents (default: 1)");
}

absl::StatusOr<std::vector<std::string>> NeedleTextWords(const NeedleText& text) {
  std::vector<std::string> words = {"--task=" + text.task, absl::StrCat("--seed=", text.seed)};
  if (text.filler.empty()) return words;
  NSA_RETURN_IF_ERROR(CheckInputFile("--filler", text.filler));
  words.push_back("--filler=" + text.filler);
  return words;
}

}  // namespace nsa::client
