#include "client/cli.h"

#include <algorithm>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands/commands.h"
#include "client/commands/completion.h"
#include "client/connect/timeout.h"
#include "common/base/clean_text.h"
#include "common/base/version.h"
#include "common/job/did_you_mean.h"

namespace nsa::client {
namespace {

const std::map<std::string, Format> kFormats = {{"table", Format::kTable},
                                                {"wide", Format::kWide},
                                                {"json", Format::kJson},
                                                {"yaml", Format::kYaml},
                                                {"name", Format::kName}};

constexpr char kSeeAlso[] =
    "Global flags: --address, --context, --timeout, -o/--output, --no-color, --quiet; "
    "see `nsactl --help`.";

// CLI11's help layout, without the suffixes that its checks add to flags: "--at-step N:POSITIVE
// Excludes: --now".
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

// Names that other programs have for a command. A word may stand for several: the first one that is
// there counts, because the commands of `nsactl token` are not those of `nsactl`.
struct OtherCommand {
  absl::string_view other;
  absl::string_view command;
};
constexpr OtherCommand kOtherCommands[] = {
    {"ls", "list"},           {"ps", "list"},           {"get", "list"},
    {"jobs", "list"},         {"squeue", "list"},       {"queue", "list"},
    {"show", "describe"},     {"status", "describe"},   {"info", "describe"},
    {"inspect", "describe"},  {"get", "show"},          {"status", "show"},
    {"current", "show"},      {"cancel", "stop"},       {"kill", "stop"},
    {"scancel", "stop"},      {"abort", "stop"},        {"terminate", "stop"},
    {"pause", "stop"},        {"rm", "delete"},         {"del", "delete"},
    {"remove", "delete"},     {"purge", "delete"},      {"rm", "revoke"},
    {"remove", "revoke"},     {"delete", "revoke"},     {"run", "submit"},
    {"start", "submit"},      {"create", "submit"},     {"apply", "submit"},
    {"train", "submit"},      {"sbatch", "submit"},     {"launch", "submit"},
    {"add", "create"},        {"new", "create"},        {"add", "set"},
    {"create", "set"},        {"continue", "resume"},   {"restart", "resume"},
    {"retry", "resume"},      {"check", "validate"},    {"lint", "validate"},
    {"check", "verify"},      {"clone", "fork"},        {"copy", "fork"},
    {"follow", "watch"},      {"attach", "watch"},      {"tail", "logs"},
    {"diff", "compare"},      {"graph", "plot"},        {"chart", "plot"},
    {"stack", "dump-stack"},  {"stacks", "dump-stack"}, {"pstack", "dump-stack"},
    {"trace", "profile"},     {"hosts", "nodes"},       {"machines", "nodes"},
    {"sinfo", "nodes"},       {"infer", "generate"},    {"predict", "generate"},
    {"complete", "generate"}, {"evaluate", "eval"},     {"score", "eval"},
    {"history", "events"},    {"config", "context"},
};

// The command of `names` that is called `word` elsewhere, or has a similar name; empty when there
// is none.
std::string CommandCalled(const std::string& word, const std::vector<std::string>& names) {
  for (const OtherCommand& row : kOtherCommands) {
    if (row.other == word && std::ranges::find(names, row.command) != names.end()) {
      return std::string(row.command);
    }
  }
  return Nearest(word, names);
}

// " (did you mean 'list'?)", or empty when no command is likely to be meant.
std::string DidYouMean(const std::string& word, const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) {
    names.push_back(command->get_name());
  }
  const std::string best = CommandCalled(word, names);
  return best.empty() ? "" : absl::StrCat(" (did you mean '", best, "'?)");
}

// Null when `app` has no such command.
const CLI::App* CommandOf(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

// "'0' (a whole number of at least 1)", "'x' (a whole number from 1 to 101)".
std::string NotANumber(const std::string& text, const Options::Range& range) {
  const bool open = range.most == std::numeric_limits<int64_t>::max();
  return absl::StrCat("'", text, "' (a whole number ",
                      open ? absl::StrCat("of at least ", range.least)
                           : absl::StrCat("from ", range.least, " to ", range.most),
                      ")");
}

// For a flag whose values are whole numbers. CLI11 then reads the digits that it leaves.
CLI::Validator WholeNumber(const Options::Range& range) {
  return CLI::Validator(
      [range](std::string& text) -> std::string {
        int64_t number = 0;
        const bool good =
            absl::SimpleAtoi(text, &number) && number >= range.least && number <= range.most;
        if (!good) return NotANumber(text, range);
        text = absl::StrCat(number);
        return "";
      },
      "");
}

// For a flag whose value is one of a few words.
CLI::Validator OneOf(const std::vector<std::string>& words) {
  return CLI::Validator(
      [words](const std::string& text) -> std::string {
        if (std::ranges::find(words, text) != words.end()) return "";
        const std::vector<std::string> first(words.begin(), words.end() - 1);
        return absl::StrCat("'", text, "' (must be ", absl::StrJoin(first, ", "), " or ",
                            words.back(), ")");
      },
      "");
}

template <typename Integer>
CLI::Option* AddNumber(CLI::App* app, const std::string& names, Integer* value,
                       const Options::Range& range, const std::string& what) {
  const int64_t most = std::min<int64_t>(range.most, std::numeric_limits<Integer>::max());
  return app->add_option(names, *value, what)
      ->type_name("N")
      ->transform(WholeNumber({.least = range.least, .most = most}));
}

// CLI11's "--file: 1 required FILE missing" in the words of other errors.
std::string NoValue(const std::string& message) {
  return absl::StrCat(message.substr(0, message.find(':')), ": none (a value is needed)");
}

// Whether `word` gives the option of this name a value or sets it: "-o", "-ofile", "--file=x".
bool Gives(const std::string& word, const std::string& name) {
  if (!name.starts_with("--")) return word.starts_with(name);
  return word == name || word.starts_with(name + "=");
}

// The flags, arguments and subcommands of a command, for completion.
CommandShape ShapeOf(const CLI::App& app) {
  CommandShape shape{.name = app.get_name(), .what = app.get_description()};
  for (const CLI::Option* option : app.get_options()) {
    CommandShape::Option& seen = shape.options.emplace_back();
    seen.argument = option->get_positional();
    seen.name = seen.argument                  ? option->get_single_name()
                : option->get_lnames().empty() ? ""
                                               : "--" + option->get_lnames().front();
    for (const std::string& name : option->get_snames()) seen.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) seen.names.push_back("--" + name);
    seen.type = option->get_type_name();
    seen.what = option->get_description();
    seen.takes_value = option->get_items_expected_max() > 0;
    seen.takes_many = option->get_items_expected_max() > 1;
  }
  for (const CLI::App* command : app.get_subcommands({})) {
    shape.commands.push_back(ShapeOf(*command));
  }
  return shape;
}

// The end of `nsactl --help`.
std::string MainFooter() {
  return absl::StrCat(
      "`nsactl COMMAND --help` or `nsactl help COMMAND` shows the help of one command, with "
      "examples.\n"
      "JOB is a job's id or its name. If several jobs have that name, a command that reads shows "
      "the newest that has\nnot ended, else the newest; one that changes takes the only one that "
      "it can change, else lists their ids.\n\n",
      ExitCodeHelp(), "\nEnvironment:\n",
      "  NSACTL_ADDRESS, NSACTL_CONTEXT, NSACTL_TIMEOUT, NSACTL_OUTPUT   defaults of the flags of "
      "the same name\n"
      "  NSACTL_TOKEN, NSACTL_TOKEN_FILE, NSACTL_TLS_CA_FILE, NSACTL_TLS_CERTIFICATE_FILE,\n"
      "  NSACTL_TLS_PRIVATE_KEY_FILE   credentials; they override those of the context\n"
      "  NSACTL_COMPLETION_TIMEOUT   how long a shell completion waits for the coordinator "
      "(default: 500ms)\n"
      "  NSACTL_CONFIG   file with the contexts (default: ~/.config/nsa/config.yaml)\n"
      "  NSA_STATE_DIR   state folder of this machine's coordinator (it holds coordinator.sock)\n"
      "  NO_COLOR   turns colours off");
}

}  // namespace

void Options::Argument(const std::string& name, std::string* value, const std::string& what) {
  app_->add_option(name, *value, what)->required();
}

void Options::Argument(const std::string& name, std::vector<std::string>* values,
                       const std::string& what) {
  app_->add_option(name, *values, what)->required();
}

void Options::OptionalArgument(const std::string& name, std::string* value,
                               const std::string& what) {
  app_->add_option(name, *value, what);
}

void Options::OptionalArguments(const std::string& name, std::vector<std::string>* values,
                                const std::string& what) {
  app_->add_option(name, *values, what);
}

void Options::Choice(const std::string& name, const std::vector<std::string>& choices,
                     std::string* value, const std::string& what) {
  app_->add_option(name, *value, what)->required()->check(OneOf(choices));
}

CLI::Option* Options::Flag(const std::string& names, bool* value, const std::string& what) {
  return app_->add_flag(names, *value, what);
}

CLI::Option* Options::Text(const std::string& names, const std::string& type, std::string* value,
                           const std::string& what) {
  return app_->add_option(names, *value, what)->type_name(type);
}

CLI::Option* Options::Word(const std::string& names, const std::vector<std::string>& words,
                           std::string* value, const std::string& what) {
  return Text(names, absl::StrJoin(words, "|"), value, what)->check(OneOf(words));
}

void Options::Texts(const std::string& names, const std::string& type,
                    std::vector<std::string>* values, const std::string& what) {
  app_->add_option(names, *values, what)->type_name(type)->allow_extra_args(false);
}

void Options::List(const std::string& names, const std::string& type,
                   std::vector<std::string>* values, const std::string& what) {
  app_->add_option(names, *values, what)->type_name(type)->delimiter(',')->allow_extra_args(false);
}

void Options::Choose(JobFilter* filter) {
  List("--state", "STATE,...", &filter->states,
       "Only jobs in these states (training, failed, …; active: not ended)");
  Texts("--label", "KEY=VALUE", &filter->labels,
        "Only jobs with this label; may be repeated, then with all of them");
}

void Options::ChooseMatching(JobSelection* selection) {
  Choose(&selection->filter);
  Flag("-y,--yes", &selection->yes, "Do not ask");
}

void Options::ChooseToActOn(JobSelection* selection) {
  OptionalArguments(
      "JOB", &selection->jobs,
      "Job ids or names, or patterns of names in quotes: 'lr-*'; no names with --state or --label");
  ChooseMatching(selection);
}

CLI::Option* Options::Number(const std::string& names, int* value, Range range,
                             const std::string& what) {
  return AddNumber(app_, names, value, range, what);
}

CLI::Option* Options::Number(const std::string& names, int64_t* value, Range range,
                             const std::string& what) {
  return AddNumber(app_, names, value, range, what);
}

CLI::Option* Options::ShortText(const std::string& names, const std::string& type, size_t most,
                                std::string* value, const std::string& what) {
  const auto check = [most](const std::string& text) -> std::string {
    if (!text.empty() && text.size() <= most) return "";
    return absl::StrCat("'", CutText(text, 40), "' (a text of 1 to ", most, " bytes)");
  };
  return Text(names, type, value, what)->check(CLI::Validator(check, ""));
}

void Options::Numbers(const std::string& names, const std::string& type,
                      std::vector<int64_t>* values, Range range, const std::string& what) {
  app_->add_option(names, *values, what)
      ->type_name(type)
      ->delimiter(',')
      ->allow_extra_args(false)
      ->transform(WholeNumber(range));
}

void Options::OptionalNumber(const std::string& name, const std::string& type, bool* given,
                             int64_t* value, const std::string& what) {
  const auto parse = [name, given, value](const std::vector<std::string>& words) {
    *given = true;
    if (words.empty() || words[0].empty()) return true;
    if (absl::SimpleAtoi(words[0], value) && *value >= 1) return true;
    throw CLI::ValidationError(name, NotANumber(words[0], {.least = 1}));
  };
  app_->add_option(name, parse, what)->expected(0, 1)->type_name(type);
}

void Options::Rank(int* rank, const std::string& what) {
  const auto parse = [rank](const std::string& text) {
    if (text == "all") {
      *rank = -1;
    } else if (!absl::SimpleAtoi(text, rank) || *rank < 0) {
      throw CLI::ValidationError("--rank", "'" + text + "' (a rank from 0, or all)");
    }
  };
  app_->add_option_function<std::string>("--rank", parse, what)->type_name("N|all");
}

void Options::Exclude(CLI::Option* one, CLI::Option* other) { one->excludes(other); }

Cli::~Cli() = default;

Cli::Cli(Session* session)
    : session_(session),
      app_(std::make_unique<CLI::App>("Submits, watches and steers NSA training jobs.", "nsactl")) {
  app_->formatter(std::make_shared<HelpLayout>());
  app_->set_help_flag("-h,--help", "Show this text and exit");
  app_->footer(MainFooter());
  AddGlobalFlags();
  AddCommands(this);
}

void Cli::AddGlobalFlags() {
  GlobalFlags& flags = session_->flags();
  app_->add_option("--address", flags.address,
                   "Coordinator: host:port or unix:/path (default: the context's, else this "
                   "machine's socket)")
      ->type_name("ADDRESS");
  app_->add_option("--context", flags.context, "Context of ~/.config/nsa/config.yaml to use")
      ->type_name("NAME");
  app_->add_option_function<std::string>(
          "--timeout",
          [&flags](const std::string& text) {
            const std::optional<absl::Duration> timeout = ParseTimeout(text);
            if (!timeout.has_value()) {
              throw CLI::ValidationError(
                  "--timeout", absl::StrCat("'", text, "' (a duration above 0 such as 10s or 2m)"));
            }
            flags.timeout_seconds = absl::ToDoubleSeconds(*timeout);
          },
          "How long to wait for an answer, e.g. 10s or 2m (default: 10s; 60s for stacks, 30m to "
          "verify a checkpoint)")
      ->type_name("DURATION")
      ->envname("NSACTL_TIMEOUT");
  app_->add_option_function<std::string>(
          "-o,--output", [&flags](const std::string& text) { flags.format = kFormats.at(text); },
          "Output: table, wide, json, yaml or name (default: table)")
      ->type_name("FORMAT")
      ->check(OneOf({"table", "wide", "json", "yaml", "name"}))
      ->envname("NSACTL_OUTPUT");
  app_->add_flag("--no-color", flags.no_color, "No colours");
  app_->add_flag("-q,--quiet", flags.quiet, "No notes on standard error");
  app_->add_flag_function(
      "--version",
      [this](int64_t) {
        session_->out() << "nsactl " << FullVersion() << "\n";
        throw CLI::Success();
      },
      "Show the version and exit");
}

Options Cli::Add(const Command& command) {
  CLI::App* parent = command.parent != nullptr ? command.parent->app_ : app_.get();
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
  return Options(app);
}

const CLI::App* Cli::Deepest() const {
  const CLI::App* app = app_.get();
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  return app;
}

const CLI::Option* Cli::OptionNamed(const std::string& name) const {
  for (const CLI::App* app = Deepest(); app != nullptr; app = app->get_parent()) {
    if (const CLI::Option* option = app->get_option_no_throw(name)) return option;
  }
  return nullptr;
}

std::string Cli::AsTyped(const std::string& message) const {
  const size_t end = message.find_first_of(":, ");
  const std::string name = message.substr(0, end);
  const CLI::Option* const option = name.starts_with("-") ? OptionNamed(name) : nullptr;
  if (option == nullptr || end == std::string::npos) return message;
  std::vector<std::string> names = {name};
  for (const std::string& other : option->get_lnames()) names.push_back("--" + other);
  for (const std::string& other : option->get_snames()) names.push_back("-" + other);
  for (const std::string& other : names) {
    // The -o of a command is not that of all commands.
    if (OptionNamed(other) != option) continue;
    const bool typed = std::ranges::any_of(
        arguments_, [&](const std::string& word) { return Gives(word, other); });
    if (typed) return other + message.substr(end);
  }
  return message;
}

ExitCode Cli::Fail(const absl::Status& status) {
  if (absl::IsCancelled(status)) return ExitCode::kInterrupted;
  // Lines before the last are details, e.g. `file:line:column: …` that an editor can follow.
  const std::string text(status.message());
  const size_t last = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
  *session_->console().err << CleanText(absl::StrCat(text.substr(0, last),
                                                     "nsactl: ", AsTyped(text.substr(last))))
                           << "\n";
  return ExitCodeOf(status);
}

ExitCode Cli::FailUsage(const std::string& message) {
  const CLI::App* app = Deepest();
  std::string path = app->get_name();
  for (const CLI::App* up = app->get_parent(); up != nullptr; up = up->get_parent()) {
    path = absl::StrCat(up->get_name(), " ", path);
  }
  *session_->console().err << "nsactl: " << CleanText(AsTyped(message)) << "; see `" << path
                           << " --help`\n";
  return ExitCode::kUsage;
}

ExitCode Cli::FailUnknownCommand(const std::string& word, const CLI::App& app) {
  return FailUsage(absl::StrCat("unknown command '", word, "'", DidYouMean(word, app)));
}

std::string Cli::UnknownCommand() const {
  const std::vector<std::string> extra = app_->remaining(true);
  const bool expected = runs_.count(Deepest()) == 0;
  return expected && !extra.empty() && !absl::StartsWith(extra[0], "-") ? extra[0] : "";
}

ExitCode Cli::FailExtra(const std::string& message, bool only_commands) {
  if (const std::string unknown = UnknownCommand(); !unknown.empty()) {
    return FailUnknownCommand(unknown, *Deepest());
  }
  if (only_commands) return FailUsage(message);
  const std::vector<std::string> extra = app_->remaining(true);
  return FailUsage(absl::StrCat("unexpected argument '", extra.empty() ? message : extra[0], "'"));
}

ExitCode Cli::ShowHelp(std::vector<std::string> path) {
  const CLI::App* app = app_.get();
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
  const Candidates candidates = Complete(*session_, ShapeOf(*app_), words);
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
  arguments_ = arguments;
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app_->parse(reversed);
  } catch (const CLI::CallForHelp&) {
    if (const std::string unknown = UnknownCommand(); !unknown.empty()) {
      return FailUnknownCommand(unknown, *Deepest());
    }
    // The help of the innermost command that CLI11 has parsed.
    session_->out() << app_->help() << std::flush;
    return ExitCode::kOk;
  } catch (const CLI::Success&) {
    return ExitCode::kOk;
  } catch (const CLI::ExtrasError& error) {
    return FailExtra(error.what(), false);
  } catch (const CLI::RequiredError& error) {
    // CLI11 reports a missing subcommand even where an unknown one was given.
    return FailExtra(error.what(), true);
  } catch (const CLI::ArgumentMismatch& error) {
    return FailUsage(absl::StrContains(error.what(), " required ") ? NoValue(error.what())
                                                                   : error.what());
  } catch (const CLI::ParseError& error) {
    return FailUsage(error.what());
  }
  const auto run = runs_.find(Deepest());
  if (run == runs_.end()) {
    *session_->console().err << app_->help();
    return ExitCode::kUsage;
  }
  const absl::StatusOr<ExitCode> result = run->second(*session_);
  const ExitCode code = result.ok() ? *result : Fail(result.status());
  session_->NoteWarning();
  if (!session_->out().flush() && code == ExitCode::kOk) {
    return Fail(absl::InternalError("standard output: cannot be written; is its disk full?"));
  }
  return code;
}

}  // namespace nsa::client
