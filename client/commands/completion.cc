// nsactl completion: prints the scripts for the shells, and finds the candidates that they ask for.
#include "client/commands/completion.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli.h"
#include "client/connect/endpoint.h"
#include "client/connect/timeout.h"
#include "client/show/curves.h"
#include "client/show/job_text.h"
#include "common/estimate/state_title.h"
#include "common/job/enum_words.h"
#include "common/job/schema_keys.h"
#include "common/rpc/cordon_text.h"
#include "nsa/v1/job.pb.h"

namespace nsa::client {
namespace {

constexpr char kBash[] = R"(# bash completion for nsactl. Use: source <(nsactl completion bash)
_nsactl() {
  local word line value current prefix="" last=-1
  local -a words=()
  # Bash makes three words of KEY=VALUE, and replaces only the one behind the =.
  for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
    if (( last >= 0 )) && [[ "$word" == "="* || "${words[last]}" == *"=" ]]; then
      words[last]+="$word"
    else
      words[++last]="$word"
    fi
  done
  current="${words[last]}"
  if [[ "$COMP_WORDBREAKS" == *"="* && "$current" == *"="* ]]; then prefix="${current%=*}="; fi
  COMPREPLY=()
  while IFS= read -r line; do
    if [[ "$line" == ":files" ]]; then
      compopt -o filenames 2>/dev/null
      while IFS= read -r value; do COMPREPLY+=("$value"); done < <(compgen -f -- "${current#"$prefix"}")
      continue
    fi
    value="${line%%$'\t'*}"
    if [[ "$value" == "$current"* ]]; then
      if [[ "$value" == *"=" ]]; then compopt -o nospace 2>/dev/null; fi
      COMPREPLY+=("${value#"$prefix"}")
    fi
  done < <("${COMP_WORDS[0]}" __complete "${words[@]}" 2>/dev/null)
}
complete -F _nsactl nsactl
)";

constexpr char kZsh[] = R"(#compdef nsactl
# zsh completion for nsactl. Use: source <(nsactl completion zsh)
_nsactl() {
  local line files=0
  local -a candidates open
  for line in "${(@f)$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    if [[ "$line" == ":files" ]]; then
      files=1
    elif [[ "${line%%$'\t'*}" == *"=" ]]; then
      open+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
    elif [[ -n "$line" ]]; then
      candidates+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
    fi
  done
  (( ${#candidates} )) && _describe 'nsactl' candidates
  (( ${#open} )) && _describe 'nsactl' open -S ''
  (( files )) && _files
}
compdef _nsactl nsactl
# As a file of fpath, this is the body of the first call.
if [[ "${funcstack[1]}" == _nsactl ]]; then _nsactl "$@"; fi
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

// True when `command` can act on a job in this state; a running job, e.g., cannot be resumed.
bool Suits(const std::string& command, v1::Job::State state) {
  if (command == "stop" || command == "dump-stack") return !HasEnded(state);
  if (command == "profile") return state == v1::Job::STATE_RUNNING;
  if (command == "delete") return HasEnded(state);
  if (command == "resume") return state == v1::Job::STATE_STOPPED || state == v1::Job::STATE_FAILED;
  return true;
}

// A client whose calls may take half a second, or $NSACTL_COMPLETION_TIMEOUT.
absl::StatusOr<Client*> QuickClient(Session& session) {
  const char* const set = std::getenv("NSACTL_COMPLETION_TIMEOUT");
  const absl::Duration patience =
      ParseTimeout(set == nullptr ? "" : set).value_or(absl::Milliseconds(500));
  session.flags().timeout_seconds = absl::ToDoubleSeconds(patience);
  return session.client();
}

void AddJobs(Session& session, const std::string& command, Candidates* result) {
  const absl::StatusOr<Client*> client = QuickClient(session);
  if (!client.ok()) return;
  v1::ListJobsRequest request;
  request.set_page_size(200);
  const auto jobs = (*client)->Call<v1::ListJobsResponse>(request);
  if (!jobs.ok()) return;
  std::set<std::string> names;
  for (const v1::Job& job : jobs->jobs()) {
    if (!Suits(command, job.state())) continue;
    const std::string what = StateTitle(job) + " " + StepText(job.progress());
    if (names.insert(job.name()).second) result->values.push_back({job.name(), what});
    result->values.push_back({job.id(), job.name() + " " + what});
  }
}

void AddNodes(Session& session, Candidates* result) {
  const absl::StatusOr<Client*> client = QuickClient(session);
  if (!client.ok()) return;
  const auto nodes = (*client)->ListNodes();
  if (!nodes.ok()) return;
  for (const v1::Node& node : nodes->nodes()) {
    const std::string cordon = CordonWord(node);
    result->values.push_back({node.info().name(), cordon.empty() ? node.state() : cordon});
  }
}

// Adds the keys of a job file, each with its =; behind the = the words of an enum or a bool.
void AddAssignments(const std::string& current, Candidates* result) {
  const std::string typed = current.substr(0, current.find('='));
  for (const SchemaKey& key : SchemaKeys(*v1::JobSpec::descriptor())) {
    if (key.IsSection()) continue;
    const std::string path = key.Path();
    if (typed == current) {
      result->values.push_back({path + "=", ""});
    } else if (typed == path) {
      std::vector<std::string> values;
      if (key.field->enum_type() != nullptr) values = EnumWords(*key.field->enum_type());
      if (key.field->cpp_type() == key.field->CPPTYPE_BOOL) values = {"true", "false"};
      for (const std::string& value : values) {
        result->values.push_back({absl::StrCat(path, "=", value), ""});
      }
    }
  }
}

// Adds the candidates for the argument or flag that is called `name`.
void AddValues(Session& session, const std::string& command, const std::string& name,
               const std::string& type, Candidates* result) {
  const auto words = [result](std::initializer_list<const char*> list) {
    for (const char* word : list) result->values.push_back({word, ""});
  };
  if (name == "JOB" || name == "--after") AddJobs(session, command, result);
  if (name == "NODE") AddNodes(session, result);
  if (name == "JOB|PATH" || name == "CHECKPOINT|JOB") {
    AddJobs(session, command, result);
    result->files = true;
  }
  const bool path =
      name == "FILE" || name == "DIR" || name == "CHECKPOINT" || name == "WHAT" || name == "DATA";
  if (path || type == "FILE" || type == "FOLDER") result->files = true;
  if (name == "DIR|URL") {
    words({"hf://"});
    result->files = true;
  }
  // A type in small letters has the words themselves, as cpu|cuda.
  if (absl::StrContains(type, '|') && std::ranges::none_of(type, absl::ascii_isupper)) {
    for (const absl::string_view word : absl::StrSplit(type, '|')) {
      result->values.push_back({std::string(word), ""});
    }
  }
  if (name == "SHELL") words({"bash", "zsh", "fish"});
  // A token gets a new name, and `sweep` has names of its own.
  const bool of_context =
      name == "NAME" && (command == "use" || command == "set" || command == "delete");
  if (of_context || name == "--context") AddContexts(result);
  if (name == "--role") words({"viewer", "submitter", "operator", "agent"});
  if (name == "--output") words({"table", "wide", "json", "yaml", "name"});
  if (name == "--x") words({"steps", "tokens", "time"});
  if (name == "--metric") {
    for (const Metric* metric : Metrics()) {
      result->values.push_back({metric->name, metric->view.label});
    }
  }
  if (name == "--state") {
    std::set<std::string> titles = {"active"};
    for (int i = v1::Job::STATE_QUEUED; i < v1::Job::State_ARRAYSIZE; ++i) {
      titles.insert(StateTitle(static_cast<v1::Job::State>(i)));
    }
    for (const std::string& title : titles) result->values.push_back({title, ""});
  }
}

// A command after those that contain it: nsactl, checkpoint, verify.
using Path = std::vector<const CommandShape*>;

// A flag of the command or of those that contain it; null when there is none.
const CommandShape::Option* FindFlag(const Path& path, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  for (auto command = path.rbegin(); command != path.rend(); ++command) {
    for (const CommandShape::Option& option : (*command)->options) {
      if (std::ranges::find(option.names, name) != option.names.end()) return &option;
    }
  }
  return nullptr;
}

const CommandShape* FindCommand(const CommandShape& parent, const std::string& name) {
  const auto found = std::ranges::find(parent.commands, name, &CommandShape::name);
  return found != parent.commands.end() ? &*found : nullptr;
}

// The meaning of the words before the last one.
struct Position {
  Path path;                                       // from nsactl to the command
  size_t arguments = 0;                            // words that are neither command nor flag
  const CommandShape::Option* awaiting = nullptr;  // the flag whose value comes next
};

Position Walk(Session& session, const CommandShape& root, const std::vector<std::string>& words) {
  Position at{.path = {&root}};
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    const std::string& word = words[i];
    if (at.awaiting != nullptr) {
      if (at.awaiting->name == "--address") session.flags().address = word;
      if (at.awaiting->name == "--context") session.flags().context = word;
      at.awaiting = nullptr;
    } else if (word.size() > 1 && word[0] == '-') {
      const CommandShape::Option* option = FindFlag(at.path, word);
      const bool takes_value = option != nullptr && option->takes_value;
      if (takes_value && !absl::StrContains(word, "=")) at.awaiting = option;
    } else if (i == 0 && word == "help") {
      continue;
    } else if (const CommandShape* command = FindCommand(*at.path.back(), word)) {
      at.path.push_back(command);
    } else {
      ++at.arguments;
    }
  }
  return at;
}

void AddFlags(const Path& path, Candidates* result) {
  std::set<std::string> seen;
  for (auto command = path.rbegin(); command != path.rend(); ++command) {
    for (const CommandShape::Option& option : (*command)->options) {
      if (option.argument || option.name.empty() || !seen.insert(option.name).second) continue;
      result->values.push_back({option.name, option.what});
    }
  }
}

// Adds the candidates for the next argument.
void AddArgument(Session& session, const Position& at, Candidates* result) {
  const CommandShape& command = *at.path.back();
  size_t place = 0;
  for (const CommandShape::Option& option : command.options) {
    if (!option.argument) continue;
    const bool next = option.takes_many ? at.arguments >= place : at.arguments == place;
    ++place;
    if (next) AddValues(session, command.name, option.name, "", result);
  }
}

}  // namespace

Candidates Complete(Session& session, const CommandShape& root,
                    const std::vector<std::string>& words) {
  Candidates result;
  const std::string current = words.empty() ? "" : words.back();
  const Position at = Walk(session, root, words);
  const CommandShape& command = *at.path.back();
  if (at.awaiting != nullptr && absl::StartsWith(at.awaiting->type, "FIELD=")) {
    AddAssignments(current, &result);
  } else if (at.awaiting != nullptr) {
    AddValues(session, command.name, at.awaiting->name, at.awaiting->type, &result);
  } else if (absl::StartsWith(current, "-") && current != "-") {
    AddFlags(at.path, &result);
  } else if (!command.commands.empty()) {
    for (const CommandShape& sub : command.commands) {
      result.values.push_back({sub.name, sub.what});
    }
  } else {
    AddArgument(session, at, &result);
  }
  return result;
}

void AddCompletion(Cli* cli) {
  const auto shell = std::make_shared<std::string>();
  Options options = cli->Add(
      {.name = "completion",
       .what = "Print a completion script for bash, zsh or fish",
       .group = "Service",
       .more = "Completes commands, flags, contexts, files, the keys of a job file and their words "
               "after --set, and the ids and\nnames of jobs, which come from the coordinator.",
       .examples = "source <(nsactl completion bash)\n"
                   "nsactl completion bash > /etc/bash_completion.d/nsactl\n"
                   "nsactl completion zsh > ~/.zsh/_nsactl\n"
                   "nsactl completion fish > ~/.config/fish/completions/nsactl.fish",
       .run = [shell](Session& session) -> absl::StatusOr<ExitCode> {
         session.out() << (*shell == "bash" ? kBash : *shell == "zsh" ? kZsh : kFish);
         return ExitCode::kOk;
       }});
  options.Choice("SHELL", {"bash", "zsh", "fish"}, shell.get(), "bash, zsh or fish");
}

}  // namespace nsa::client
