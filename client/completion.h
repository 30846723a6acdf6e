// What the shells' completion scripts ask: `nsactl __complete WORD...`.
#pragma once

#include <string>
#include <vector>

#include "client/cli.h"

namespace nsa {

// One thing that the last word may become.
struct Candidate {
  std::string value;
  std::string what;  // shown beside it by zsh and fish
};

struct Candidates {
  std::vector<Candidate> values;
  bool files = false;  // names of files too
};

// `words` are the command line's without the program's name; the last one is being typed and may be
// empty. Commands and flags come from `app`, jobs from the coordinator when it answers within half
// a second, contexts from their file.
Candidates Complete(Session& session, const CLI::App& app, const std::vector<std::string>& words);

}  // namespace nsa
