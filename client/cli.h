// The command line: parsing, --help, dispatch, errors and exit codes.
//
// To add a command: a file client/<command>.cc with `void Add<Command>(Cli* cli)` that calls
// cli->Add() and declares its flags; its line in commands.h and in AddCommands() of cli.cc; its row
// in README.md.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "client/exit_code.h"
#include "client/session.h"

namespace nsa {

class Cli {
 public:
  using Run = std::function<absl::StatusOr<ExitCode>(Session&)>;

  struct Command {
    std::string name;
    std::string what;      // one line
    std::string group;     // heading in `nsactl --help`
    std::string more;      // further text of the command's --help
    std::string examples;  // its last part, a line each
    Run run;               // empty for a command that only has subcommands
    CLI::App* parent = nullptr;
  };

  explicit Cli(Session* session);

  // Adds a command; the caller declares its flags and arguments on the result.
  CLI::App* Add(const Command& command);

  // Parses, runs, prints what went wrong, and says with what to exit. `arguments` are without the
  // program's name.
  ExitCode Main(const std::vector<std::string>& arguments);

  CLI::App& app() { return app_; }

 private:
  void AddGlobalFlags();
  ExitCode ShowHelp(std::vector<std::string> path);
  ExitCode ShowCandidates(const std::vector<std::string>& words);
  ExitCode Fail(const absl::Status& status);
  ExitCode FailUsage(const std::string& message);
  ExitCode FailUnknownCommand(const std::string& word, const CLI::App& app);
  const CLI::App* Deepest() const;

  Session* const session_;
  CLI::App app_;
  std::map<const CLI::App*, Run> runs_;
};

}  // namespace nsa
