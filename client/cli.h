// The command line: parsing, --help, dispatch, errors and exit codes.
//
// A command is a file client/commands/<command>.cc with a function `void Add<Command>(Cli* cli)`
// that calls cli->Add() and declares its flags. README.md lists the other places to edit. Only
// cli.cc includes headers of CLI11.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/connect/act_on_jobs.h"
#include "client/connect/collect_jobs.h"
#include "client/connect/session.h"
#include "client/exit_code.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace nsa::client {

// Declares the flags and arguments of one command. Parsing writes into the variables given here,
// which must outlive the Cli. `names` are as in "-f,--follow"; `type` stands for the value in the
// help, as in "--at-step N".
class Options {
 public:
  explicit Options(CLI::App* app) : app_(app) {}

  // A required positional argument, e.g. JOB. The vector form takes one or more words.
  void Argument(const std::string& name, std::string* value, const std::string& what);
  void Argument(const std::string& name, std::vector<std::string>* values, const std::string& what);
  void OptionalArgument(const std::string& name, std::string* value, const std::string& what);
  void OptionalArguments(const std::string& name, std::vector<std::string>* values,
                         const std::string& what);
  void Choice(const std::string& name, const std::vector<std::string>& choices, std::string* value,
              const std::string& what);

  CLI::Option* Flag(const std::string& names, bool* value, const std::string& what);
  CLI::Option* Text(const std::string& names, const std::string& type, std::string* value,
                    const std::string& what);
  // A flag whose value is one of these words.
  CLI::Option* Word(const std::string& names, const std::vector<std::string>& words,
                    std::string* value, const std::string& what);
  // A text of 1 to `most` bytes.
  CLI::Option* ShortText(const std::string& names, const std::string& type, size_t most,
                         std::string* value, const std::string& what);
  // A flag that may be repeated, with one value each time.
  void Texts(const std::string& names, const std::string& type, std::vector<std::string>* values,
             const std::string& what);
  // A flag whose value is a comma-separated list.
  void List(const std::string& names, const std::string& type, std::vector<std::string>* values,
            const std::string& what);

  // The allowed whole numbers, both ends included.
  struct Range {
    int64_t least = 0;
    int64_t most = std::numeric_limits<int64_t>::max();
  };
  CLI::Option* Number(const std::string& names, int* value, Range range, const std::string& what);
  CLI::Option* Number(const std::string& names, int64_t* value, Range range,
                      const std::string& what);
  // A flag whose value is a comma-separated list of whole numbers.
  void Numbers(const std::string& names, const std::string& type, std::vector<int64_t>* values,
               Range range, const std::string& what);
  // A flag with or without a whole number from 1: `given` says whether it is there, `value` is 0
  // without a number.
  void OptionalNumber(const std::string& name, const std::string& type, bool* given, int64_t* value,
                      const std::string& what);
  // `--rank N|all`; "all" is stored as -1.
  void Rank(int* rank, const std::string& what);

  // --state and --label, which choose jobs.
  void Choose(JobFilter* filter);
  // The same, and --yes, for a command that changes the jobs that match.
  void ChooseMatching(JobSelection* selection);
  // The same, and JOB.
  void ChooseToActOn(JobSelection* selection);

  // Refuses a command line that has both flags.
  void Exclude(CLI::Option* one, CLI::Option* other);

 private:
  friend class Cli;

  CLI::App* app_;
};

class Cli {
 public:
  using Run = std::function<absl::StatusOr<ExitCode>(Session&)>;

  struct Command {
    std::string name;
    std::string what;      // one line
    std::string group;     // heading in `nsactl --help`
    std::string more;      // further text in the command's --help
    std::string examples;  // shown at the end of --help; one per line
    Run run;               // empty for a command that only has subcommands
    const Options* parent = nullptr;
  };

  explicit Cli(Session* session);
  ~Cli();

  // Adds a command; the caller declares its flags and arguments on the result.
  Options Add(const Command& command);

  // Parses the command line, runs the command, prints any error, and returns the exit code.
  // `arguments` do not include the program's name.
  ExitCode Main(const std::vector<std::string>& arguments);

 private:
  void AddGlobalFlags();
  ExitCode ShowHelp(std::vector<std::string> path);
  ExitCode ShowCandidates(const std::vector<std::string>& words);
  ExitCode Fail(const absl::Status& status);
  ExitCode FailUsage(const std::string& message);
  ExitCode FailUnknownCommand(const std::string& word, const CLI::App& app);
  // The word in the place of a command that is not one; empty when there is no such word.
  std::string UnknownCommand() const;
  // Reports words that CLI11 could not place: an unknown command, else an unexpected argument, or
  // `message` when only commands are looked for.
  ExitCode FailExtra(const std::string& message, bool only_commands);
  const CLI::App* Deepest() const;
  // The flag of this name, of the innermost command that has one; null if there is none.
  const CLI::Option* OptionNamed(const std::string& name) const;
  // A message that begins with a flag, with the name of it that the user typed: of -o and --file
  // the one that is on the command line.
  std::string AsTyped(const std::string& message) const;

  Session* const session_;
  const std::unique_ptr<CLI::App> app_;
  std::map<const CLI::App*, Run> runs_;
  std::vector<std::string> arguments_;  // as they were typed
};

}  // namespace nsa::client
