// nsactl completion: scripts for the shells, and the candidates that they ask for.
#include "client/completion.h"

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/endpoint.h"
#include "client/job_text.h"

namespace nsa {
namespace {

constexpr char kBash[] = R"(# bash completion for nsactl. Use: source <(nsactl completion bash)
_nsactl() {
  local current="${COMP_WORDS[COMP_CWORD]}" line value
  COMPREPLY=()
  while IFS= read -r line; do
    if [[ "$line" == ":files" ]]; then
      compopt -o filenames 2>/dev/null
      while IFS= read -r value; do COMPREPLY+=("$value"); done < <(compgen -f -- "$current")
      continue
    fi
    value="${line%%$'\t'*}"
    if [[ "$value" == "$current"* ]]; then COMPREPLY+=("$value"); fi
  done < <("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _nsactl nsactl
)";

constexpr char kZsh[] = R"(#compdef nsactl
# zsh completion for nsactl. Use: source <(nsactl completion zsh)
_nsactl() {
  local line files=0
  local -a candidates
  for line in "${(@f)$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    if [[ "$line" == ":files" ]]; then
      files=1
    elif [[ -n "$line" ]]; then
      candidates+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
    fi
  done
  (( ${#candidates} )) && _describe 'nsactl' candidates
  (( files )) && _files
}
compdef _nsactl nsactl
)";

constexpr char kFish[] = R"(# fish completion for nsactl. Use: nsactl completion fish | source
function __nsactl_complete
    set -l words (commandline -opc) (commandline -ct)
    for line in ($words[1] __complete $words[2..-1] 2>/dev/null)
        if test "$line" = ":files"
            __fish_complete_path (commandline -ct)
        else
            echo $line
        end
    end
end
complete -c nsactl -f -a '(__nsactl_complete)'
)";

void AddContexts(Candidates* result) {
  const auto config = ReadClientConfig(ClientConfigPath());
  if (!config.ok()) return;
  for (const v1::ClientContext& context : config->contexts()) {
    result->values.push_back({context.name(), context.address()});
  }
}

// Jobs that the command can do something with: one that runs cannot be resumed.
bool Suits(const std::string& command, v1::Job::State state) {
  if (command == "stop" || command == "dump-stack") return !HasEnded(state);
  if (command == "delete") return HasEnded(state);
  if (command == "resume") return state == v1::Job::STATE_STOPPED || state == v1::Job::STATE_FAILED;
  return true;
}

void AddJobs(Session& session, const std::string& command, Candidates* result) {
  session.flags().timeout_seconds = 0.5;
  const absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return;
  v1::ListJobsRequest request;
  request.set_page_size(200);
  const auto jobs = (*client)->ListJobs(request);
  if (!jobs.ok()) return;
  std::set<std::string> names;
  for (const v1::Job& job : jobs->jobs()) {
    if (!Suits(command, job.state())) continue;
    const std::string what = StateName(job.state()) + " " + StepText(job.progress());
    if (names.insert(job.name()).second) result->values.push_back({job.name(), what});
    result->values.push_back({job.id(), job.name() + " " + what});
  }
}

// Values of the positional or the flag that is called `name`.
void AddValues(Session& session, const CLI::App& app, const std::string& name,
               const std::string& type, Candidates* result) {
  const auto words = [result](std::initializer_list<const char*> list) {
    for (const char* word : list) result->values.push_back({word, ""});
  };
  if (name == "JOB") AddJobs(session, app.get_name(), result);
  if (name == "JOB|PATH") {
    AddJobs(session, app.get_name(), result);
    result->files = true;
  }
  if (name == "FILE" || type == "FILE") result->files = true;
  if (name == "SHELL") words({"bash", "zsh", "fish"});
  if (name == "NAME" || name == "--context") AddContexts(result);
  if (name == "--output") words({"table", "wide", "json", "yaml", "name"});
  if (name == "--state") {
    words({"active", "queued", "preflight", "starting", "running", "restarting", "stopping",
           "succeeded", "failed", "stopped"});
  }
}

std::string LongName(const CLI::Option& option) {
  const auto& names = option.get_lnames();
  return names.empty() ? "" : "--" + names.front();
}

// A flag of the command or of those above it.
const CLI::Option* FindFlag(const CLI::App* app, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  for (; app != nullptr; app = app->get_parent()) {
    if (const CLI::Option* option = app->get_option_no_throw(name)) return option;
  }
  return nullptr;
}

const CLI::App* FindCommand(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

// What the words before the last one have settled.
struct Position {
  const CLI::App* app = nullptr;
  size_t positionals = 0;
  const CLI::Option* awaiting = nullptr;  // the flag whose value comes next
};

Position Walk(Session& session, const CLI::App& root, const std::vector<std::string>& words) {
  Position at{.app = &root};
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    const std::string& word = words[i];
    if (at.awaiting != nullptr) {
      const std::string name = LongName(*at.awaiting);
      if (name == "--address") session.flags().address = word;
      if (name == "--context") session.flags().context = word;
      at.awaiting = nullptr;
    } else if (word.size() > 1 && word[0] == '-') {
      const CLI::Option* option = FindFlag(at.app, word);
      const bool takes_value = option != nullptr && option->get_items_expected_max() > 0;
      if (takes_value && !absl::StrContains(word, "=")) at.awaiting = option;
    } else if (i == 0 && word == "help") {
      continue;
    } else if (const CLI::App* command = FindCommand(*at.app, word)) {
      at.app = command;
    } else {
      ++at.positionals;
    }
  }
  return at;
}

void AddFlags(const CLI::App* app, Candidates* result) {
  std::set<std::string> seen;
  for (; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : app->get_options()) {
      const std::string name = LongName(*option);
      if (!name.empty() && seen.insert(name).second) {
        result->values.push_back({name, option->get_description()});
      }
    }
  }
}

}  // namespace

Candidates Complete(Session& session, const CLI::App& app, const std::vector<std::string>& words) {
  Candidates result;
  const std::string current = words.empty() ? "" : words.back();
  const Position at = Walk(session, app, words);
  if (at.awaiting != nullptr) {
    AddValues(session, *at.app, LongName(*at.awaiting), at.awaiting->get_type_name(), &result);
  } else if (absl::StartsWith(current, "-") && current != "-") {
    AddFlags(at.app, &result);
  } else if (!at.app->get_subcommands({}).empty()) {
    for (const CLI::App* command : at.app->get_subcommands({})) {
      result.values.push_back({command->get_name(), command->get_description()});
    }
  } else {
    size_t index = 0;
    for (const CLI::Option* option : at.app->get_options()) {
      if (!option->get_positional()) continue;
      const bool takes_more = option->get_items_expected_max() > 1;
      if (const size_t place = index++;
          takes_more ? at.positionals < place : at.positionals != place) {
        continue;
      }
      AddValues(session, *at.app, option->get_single_name(), "", &result);
    }
  }
  return result;
}

void AddCompletion(Cli* cli) {
  const auto shell = std::make_shared<std::string>();
  CLI::App* command = cli->Add(
      {.name = "completion",
       .what = "Print a completion script for bash, zsh or fish",
       .group = "Service",
       .more = "Completes commands, flags, contexts, and the ids and names of jobs, which it asks "
               "the coordinator for.",
       .examples = "source <(nsactl completion bash)\n"
                   "nsactl completion bash > /etc/bash_completion.d/nsactl\n"
                   "nsactl completion zsh > ~/.zsh/_nsactl\n"
                   "nsactl completion fish > ~/.config/fish/completions/nsactl.fish",
       .run = [shell](Session& session) -> absl::StatusOr<ExitCode> {
         session.out() << (*shell == "bash" ? kBash : *shell == "zsh" ? kZsh : kFish);
         return ExitCode::kOk;
       }});
  command->add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
}

}  // namespace nsa
