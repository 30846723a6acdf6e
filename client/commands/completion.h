// What the shells' completion scripts ask: `nsactl __complete WORD...`.
#pragma once

#include <string>
#include <vector>

#include "client/connect/session.h"

namespace nsa::client {

// One thing that the last word may become.
struct Candidate {
  std::string value;
  std::string what;  // shown beside it by zsh and fish
};

struct Candidates {
  std::vector<Candidate> values;
  bool files = false;  // names of files too
};

// A command as completion sees it, with its flags, arguments and subcommands.
struct CommandShape {
  struct Option {
    std::string name;                // "--rank", or an argument's "JOB"; empty without a long name
    std::vector<std::string> names;  // every spelling of a flag
    std::string type;                // "FILE"
    std::string what;
    bool argument = false;     // a word without a flag
    bool takes_value = false;  // a flag that is followed by its value
    bool takes_many = false;   // an argument that may be repeated
  };

  std::string name;
  std::string what;
  std::vector<Option> options;
  std::vector<CommandShape> commands;
};

// `words` are the command line's without the program's name; the last one is being typed and may be
// empty. Commands and flags come from `root`, jobs from the coordinator when it answers within half
// a second, contexts from their file.
Candidates Complete(Session& session, const CommandShape& root,
                    const std::vector<std::string>& words);

}  // namespace nsa::client
