// The answer to `nsactl __complete WORD...`, which the shells' completion scripts call.
#pragma once

#include <string>
#include <vector>

#include "client/connect/session.h"

namespace nsa::client {

// One way to complete the last word.
struct Candidate {
  std::string value;
  std::string what;  // shown beside it by zsh and fish
};

struct Candidates {
  std::vector<Candidate> values;
  bool files = false;  // also complete file names
};

// What completion knows about a command: its flags, arguments and subcommands.
struct CommandShape {
  struct Option {
    std::string name;                // "--rank", or an argument's "JOB"; empty without a long name
    std::vector<std::string> names;  // every spelling of a flag
    std::string type;                // "FILE"
    std::string what;
    bool argument = false;     // positional
    bool takes_value = false;  // a flag that is followed by its value
    bool takes_many = false;   // an argument that may be repeated
  };

  std::string name;
  std::string what;
  std::vector<Option> options;
  std::vector<CommandShape> commands;
};

// `words` is the command line without the program's name; its last word is still being typed and
// may be empty. Commands and flags come from `root`, jobs from the coordinator if it answers within
// half a second, contexts from their file.
Candidates Complete(Session& session, const CommandShape& root,
                    const std::vector<std::string>& words);

}  // namespace nsa::client
