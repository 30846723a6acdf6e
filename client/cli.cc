#include "client/cli.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands.h"
#include "client/completion.h"
#include "common/did_you_mean.h"
#include "common/version.h"

namespace nsa {
namespace {

const std::map<std::string, Format> kFormats = {{"table", Format::kTable},
                                                {"wide", Format::kWide},
                                                {"json", Format::kJson},
                                                {"yaml", Format::kYaml},
                                                {"name", Format::kName}};

constexpr char kSeeAlso[] =
    "Global flags: --address, --context, --timeout, -o/--output, --no-color, --quiet; "
    "see 'nsactl --help'.";

// CLI11's layout without what its checks add to names: "--at-step N:POSITIVE Excludes: --now".
class HelpLayout final : public CLI::Formatter {
 public:
  HelpLayout() {
    column_width(28);
    label("SUBCOMMAND", "COMMAND");
    label("Positionals", "Arguments");
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_positional() || option->get_items_expected_max() == 0) return "";
    const std::string type = option->get_type_name();
    return " " + type.substr(0, type.find(':'));
  }
};

// "; did you mean 'list'?", or empty when no command is near.
std::string DidYouMean(const std::string& word, const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) {
    names.push_back(command->get_name());
  }
  const std::string best = Nearest(word, names);
  return best.empty() ? "" : absl::StrCat("; did you mean '", best, "'?");
}

// Null when `app` has no such command.
const CLI::App* CommandOf(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

void AddCommands(Cli* cli) {
  AddSubmit(cli);
  AddValidate(cli);
  AddList(cli);
  AddDescribe(cli);
  AddWatch(cli);
  AddLogs(cli);
  AddEvents(cli);
  AddMetrics(cli);
  AddStop(cli);
  AddResume(cli);
  AddDelete(cli);
  AddDumpStack(cli);
  AddCheckpoint(cli);
  AddNodes(cli);
  AddVersion(cli);
  AddContext(cli);
  AddCompletion(cli);
}

}  // namespace

Cli::Cli(Session* session)
    : session_(session), app_("Submits, watches and steers NSA training jobs.", "nsactl") {
  app_.formatter(std::make_shared<HelpLayout>());
  app_.set_help_flag("-h,--help", "Show this text and leave");
  app_.footer(absl::StrCat(
      "'nsactl COMMAND --help' or 'nsactl help COMMAND' says more about a command, with examples.\n"
      "JOB is a job's id, or a name, which means the newest job of that name.\n\n",
      ExitCodeHelp(), "\nEnvironment:\n",
      "  NSACTL_ADDRESS, NSACTL_CONTEXT, NSACTL_TIMEOUT, NSACTL_OUTPUT   like the flags, which "
      "win\n"
      "  NSACTL_TOKEN, NSACTL_TOKEN_FILE, NSACTL_TLS_CA_FILE, NSACTL_TLS_CERTIFICATE_FILE,\n"
      "  NSACTL_TLS_PRIVATE_KEY_FILE   credentials; they win over the context's\n"
      "  NSACTL_CONFIG   file of contexts (default ~/.config/nsa/config.yaml)\n"
      "  NSA_STATE_DIR   where this machine's coordinator listens (coordinator.sock)\n"
      "  NO_COLOR   no colours"));
  AddGlobalFlags();
  AddCommands(this);
}

void Cli::AddGlobalFlags() {
  GlobalFlags& flags = session_->flags();
  app_.add_option("--address", flags.address,
                  "Coordinator: host:port or unix:/path (default: the context's, else this "
                  "machine's socket)")
      ->type_name("ADDRESS");
  app_.add_option("--context", flags.context, "Context of ~/.config/nsa/config.yaml to use")
      ->type_name("NAME");
  app_.add_option_function<std::string>(
          "--timeout",
          [&flags](const std::string& text) {
            absl::Duration timeout;
            const bool number =
                text.find_first_not_of("0123456789.") == std::string::npos && !text.empty();
            if (!absl::ParseDuration(number ? text + "s" : text, &timeout) ||
                timeout <= absl::ZeroDuration()) {
              throw CLI::ValidationError(
                  "--timeout", absl::StrCat("'", text, "' (a duration above 0 such as 10s or 2m)"));
            }
            flags.timeout_seconds = absl::ToDoubleSeconds(timeout);
          },
          "Longest wait for an answer, e.g. 10s or 2m (default 10s)")
      ->type_name("DURATION")
      ->envname("NSACTL_TIMEOUT");
  app_.add_option_function<std::string>(
          "-o,--output", [&flags](const std::string& text) { flags.format = kFormats.at(text); },
          "Output: table, wide, json, yaml or name (default table)")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"table", "wide", "json", "yaml", "name"}))
      ->envname("NSACTL_OUTPUT");
  app_.add_flag("--no-color", flags.no_color, "No colours");
  app_.add_flag("-q,--quiet", flags.quiet, "No remarks on standard error");
  app_.add_flag_function(
      "--version",
      [this](int64_t) {
        session_->out() << "nsactl " << kVersion << " (" << kRevision << ")\n";
        throw CLI::Success();
      },
      "Show the version and leave");
}

CLI::App* Cli::Add(const Command& command) {
  CLI::App* parent = command.parent != nullptr ? command.parent : &app_;
  CLI::App* app = parent->add_subcommand(command.name, command.what);
  app->group(command.parent != nullptr ? "Commands" : command.group);  // "" would hide it
  app->fallthrough();
  std::string footer;
  if (!command.more.empty()) absl::StrAppend(&footer, command.more, "\n\n");
  if (!command.examples.empty()) {
    absl::StrAppend(&footer, "Examples:\n  ",
                    absl::StrJoin(CLI::detail::split(command.examples, '\n'), "\n  "), "\n\n");
  }
  app->footer(footer + kSeeAlso);
  if (command.run) {
    runs_[app] = command.run;
  } else {
    app->require_subcommand(1);
  }
  return app;
}

const CLI::App* Cli::Deepest() const {
  const CLI::App* app = &app_;
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  return app;
}

ExitCode Cli::Fail(const absl::Status& status) {
  if (absl::IsCancelled(status)) return ExitCode::kInterrupted;
  // Lines before the last are details, e.g. `file:line:column: …` that an editor can follow.
  std::string text(status.message());
  const size_t last = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
  *session_->console().err << text.insert(last, "nsactl: ") << "\n";
  return ExitCodeOf(status);
}

ExitCode Cli::FailUsage(const std::string& message) {
  const CLI::App* app = Deepest();
  std::string path = app->get_name();
  for (const CLI::App* up = app->get_parent(); up != nullptr; up = up->get_parent()) {
    path = absl::StrCat(up->get_name(), " ", path);
  }
  *session_->console().err << "nsactl: " << message << "; see '" << path << " --help'\n";
  return ExitCode::kUsage;
}

ExitCode Cli::FailUnknownCommand(const std::string& word, const CLI::App& app) {
  return FailUsage(absl::StrCat("unknown command '", word, "'", DidYouMean(word, app)));
}

ExitCode Cli::ShowHelp(std::vector<std::string> path) {
  const CLI::App* app = &app_;
  for (const std::string& word : path) {
    if (absl::StartsWith(word, "-")) break;
    const CLI::App* const parent = app;
    app = CommandOf(*parent, word);
    if (app == nullptr) return FailUnknownCommand(word, *parent);
  }
  path.push_back("--help");
  return Main(path);
}

ExitCode Cli::ShowCandidates(const std::vector<std::string>& words) {
  const Candidates candidates = Complete(*session_, app_, words);
  for (const Candidate& candidate : candidates.values) {
    session_->out() << candidate.value << "\t" << candidate.what << "\n";
  }
  if (candidates.files) session_->out() << ":files\n";
  session_->out() << std::flush;
  return ExitCode::kOk;
}

ExitCode Cli::Main(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && arguments[0] == "help") {
    return ShowHelp({arguments.begin() + 1, arguments.end()});
  }
  if (!arguments.empty() && arguments[0] == "__complete") {
    return ShowCandidates({arguments.begin() + 1, arguments.end()});
  }
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app_.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    // CLI11 has already parsed up to --help, so that the text is the innermost command's.
    session_->out() << app_.help() << std::flush;
    return ExitCode::kOk;
  } catch (const CLI::Success&) {
    return ExitCode::kOk;
  } catch (const CLI::ExtrasError& error) {
    const CLI::App* app = Deepest();
    const std::vector<std::string> extra = app_.remaining(true);
    if (runs_.count(app) == 0 && !extra.empty() && !absl::StartsWith(extra[0], "-")) {
      return FailUnknownCommand(extra[0], *app);
    }
    return FailUsage(absl::StrCat("unexpected argument '",
                                  extra.empty() ? std::string(error.what()) : extra[0], "'"));
  } catch (const CLI::RequiredError& error) {
    // That a subcommand is wanted is said before that the word there is none.
    const CLI::App* app = Deepest();
    const std::vector<std::string> extra = app_.remaining(true);
    if (runs_.count(app) == 0 && !extra.empty() && !absl::StartsWith(extra[0], "-")) {
      return FailUnknownCommand(extra[0], *app);
    }
    return FailUsage(error.what());
  } catch (const CLI::ParseError& error) {
    return FailUsage(error.what());
  }
  const auto run = runs_.find(Deepest());
  if (run == runs_.end()) {
    *session_->console().err << app_.help();
    return ExitCode::kUsage;
  }
  const absl::StatusOr<ExitCode> result = run->second(*session_);
  const ExitCode code = result.ok() ? *result : Fail(result.status());
  if (!session_->out().flush() && code == ExitCode::kOk) {
    return Fail(absl::InternalError("standard output: cannot be written; is its disk full?"));
  }
  return code;
}

}  // namespace nsa
